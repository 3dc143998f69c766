//! The CPU backend.
//!
//! [`isa`] is the one trait kernels are written against; [`pack`], [`quant`] and [`matmul`] are the products,
//! [`vector`] the row kernels; [`pool`] the workers; [`CpuBackend`] compiles graphs into lists of these.

pub mod attention;
mod backend;
pub mod isa;
pub mod matmul;
pub mod memory;
pub mod pack;
pub mod pool;
pub mod probe;
pub mod quant;
pub mod vector;

pub use backend::{CpuBackend, CpuOptions};
#[cfg(test)]
mod testing;
