//! Requests in an engine: order, limits, cancelling, preemption, failures.

mod ahead;
mod desk;
mod limits;
mod lost;
mod mixes;
mod order;
mod recurrent;
mod refused;
mod saved;
mod session_mixes;
mod sessions;
mod stages;
