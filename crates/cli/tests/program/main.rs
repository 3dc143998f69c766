//! The program from outside, on the goldens.

mod errors;
mod fetch;
mod results;
mod support;
