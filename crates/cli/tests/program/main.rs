//! The program from outside, on the goldens.

mod chat;
mod devices;
mod errors;
mod fetch;
mod quantize;
mod results;
mod support;
mod synth;
#[cfg(target_os = "linux")]
mod terminal;
