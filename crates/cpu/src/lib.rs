//! The CPU backend.

pub mod attention;
pub mod isa;
pub mod memory;
pub mod pool;
pub mod vector;
