//! Recording graphs, rewriting them, planning their memory, and the contract of a backend.
//!
//! [`Builder`] records, [`rewrite::standard`] fuses, [`memory::plan`] lays out intermediates, a [`backend::Backend`]
//! compiles. The crate does no I/O, knows no model and no device.

pub mod backend;
pub mod block_pool;
pub mod buckets;
mod builder;
mod byte_size;
pub mod chart;
mod cut;
mod fence;
mod graph;
mod identity;
pub mod memory;
pub mod operand;
mod report;
pub mod rewrite;
pub mod stream;
pub mod validate;

pub use block_pool::{BlockPool, BlockPoolError};
pub use buckets::{Buckets, BucketsError};
pub use builder::{Builder, Diagnostic, Diagnostics, State, Tensor};
pub use byte_size::ByteSize;
pub use cut::cut;
pub use fence::{Fence, Signal, fence};
pub use graph::{Graph, Node, NodeId, Port, PortId, PortKind, ScalarId, Source, Value, ValueId};
pub use identity::Identity;
pub use report::{MemoryReport, PlanReport, PortInfo, Selection};
pub use stream::Stream;
