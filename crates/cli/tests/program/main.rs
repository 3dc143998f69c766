//! The program from outside, on the goldens.

mod colour;
mod devices;
mod errors;
mod fetch;
mod help;
mod malformed;
mod quantize;
mod readme;
mod results;
mod run;
mod split;
mod support;
mod synth;
