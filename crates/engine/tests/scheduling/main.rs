//! Requests in an engine: order, limits, cancelling, preemption, failures.

mod desk;
mod limits;
mod mixes;
mod order;
mod recurrent;
mod refused;
