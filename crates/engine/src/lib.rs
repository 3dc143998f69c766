//! Sequences, scheduling, KV blocks and sampling.
