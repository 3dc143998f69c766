//! The program from outside, on the goldens.

mod devices;
mod errors;
mod fetch;
mod pull;
mod quantize;
mod results;
mod support;
mod synth;
