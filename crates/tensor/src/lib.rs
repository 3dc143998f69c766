//! Element types, shapes and the op vocabulary of Gristmill, with a reference for every op.
//!
//! Start at [`ops`]: that page lists everything the system can compute.

pub mod blocks;
pub mod dtype;
pub mod encode;
pub mod host;
pub mod ops;
pub mod sampling;
pub mod shape;

pub use dtype::DType;
pub use host::HostTensor;
pub use ops::Op;
pub use shape::{Layout, Shape};
