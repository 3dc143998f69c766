//! Sequences, scheduling, KV blocks and sampling.

pub mod sampling;
