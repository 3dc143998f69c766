//! Kernels over rows of f32: norms, activations, softmax, selection, rotary embedding, short convolution,
//! delta rule.
//!
//! Every kernel gives the same bits on every instruction set, and each row's result depends on that row alone, so rows
//! may be divided over workers in any way. Sums are written for sixteen virtual lanes and a fixed tree.
//!
//! Kernels take [`Rows`] and write [`RowsMut`]; shapes that do not fit together are a mistake of the caller and panic.

mod conv;
mod delta;
mod elementwise;
pub(crate) mod lanes;
pub(crate) mod math;
mod norm;
mod rope;
mod rows;
mod segments;
mod select;
mod softmax;
#[cfg(test)]
mod tests;

pub use conv::{ShortConv, short_conv};
pub use delta::{DeltaRule, delta_rule};
pub use elementwise::{Binary, Unary, binary, unary, weighted_sums};
pub use norm::{add_rms_norm, rms_norm};
pub use rope::{rope, rope_angles};
pub use rows::{Rows, RowsMut, Src};
pub use segments::Segments;
pub use select::{SelectError, argmax, top_k};
pub use softmax::softmax;
