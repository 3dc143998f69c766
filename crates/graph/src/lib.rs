//! Recording graphs, rewriting them, planning their memory, and the contract of a backend.

pub mod block_pool;
pub mod buckets;
pub mod stream;

pub use block_pool::{BlockPool, BlockPoolError};
pub use buckets::{Buckets, BucketsError};
pub use stream::Stream;
