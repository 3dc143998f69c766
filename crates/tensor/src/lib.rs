//! Element types, shapes and the op vocabulary of Gristmill, with a reference for every op.

pub mod blocks;
pub mod dtype;

pub use dtype::DType;
