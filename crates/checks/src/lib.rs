//! Checks of the whole stack on a device: goldens and determinism.
//!
//! Like conformance, these run in the tests of the repository and inside the program, so that anyone can prove their own
//! device: [`goldens`] compares a model's answers with those of an independent implementation, [`determinism`] the same
//! request's answers with each other, and each of its comparisons is shown to fail on a device with a fault put in.

pub mod determinism;
mod drive;
mod error;
pub mod faults;
pub mod goldens;
pub mod quantise;
pub mod variants;

pub use drive::{drive, open_model};
pub use error::CheckError;
