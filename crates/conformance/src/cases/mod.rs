//! The cases: op x type x shape class.
//!
//! Classes: `tiny` (one row, one block, one output), `odd` (nothing a multiple of anything), `large`, `empty` (no row in
//! the step), `strided` (operands that are column slices or repeated rows), and what is special to an op.

mod attention;
mod delta;
mod elementwise;
mod linear;
mod moe;
mod recurrent;
mod rows;
mod sample;

use tensor::DType;

use crate::case::Case;

/// Every case.
pub fn all() -> Vec<Case> {
    [
        linear::cases(),
        elementwise::cases(),
        rows::cases(),
        attention::cases(),
        moe::cases(),
        recurrent::cases(),
        delta::cases(),
        sample::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A row length of `blocks` blocks; for plain types of 37 elements each, so that nothing is aligned.
fn length(dtype: DType, blocks: usize) -> usize {
    blocks * if dtype.is_quantised() { dtype.block_len() } else { 37 }
}
