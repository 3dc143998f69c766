//! The program from outside, on the goldens.

mod chat;
mod colour;
mod devices;
mod errors;
mod fetch;
mod help;
mod malformed;
mod pull;
mod quantize;
mod readme;
mod results;
mod run;
mod split;
mod support;
mod synth;
#[cfg(target_os = "linux")]
mod terminal;
