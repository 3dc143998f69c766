//! Requests in an engine: order, limits, cancelling, preemption, failures.

mod ahead;
mod desk;
mod limits;
mod mixes;
mod order;
mod recurrent;
mod refused;
