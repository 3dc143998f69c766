//! Attention over a paged KV cache.
//!
//! The cache is a pool of blocks of [`BLOCK`] positions; a page table per sequence says which blocks hold its positions.
//! [`kv_write`] stores keys and values, [`attention`] reads them for a ragged batch of rows with grouped query heads,
//! sliding windows and logit soft-capping.
//!
//! **The same bits for a row and head**, whatever else is in the batch, however rows are tiled and whoever computes them:
//! scores add up over dimensions in order; keys are taken in groups of [`GROUP`] at absolute multiples, in order; each
//! group rescales a running softmax once; groups belong to splits of [`SPLIT`] keys at absolute multiples, each with a
//! softmax of its own, merged in order. Keys that a row does not see are not touched for it, so neither another row's
//! keys nor stale memory can change a bit.

mod cache;
mod drive;
mod keys;
mod splits;
#[cfg(test)]
mod tests;
mod tile;

pub use cache::{KvLayout, KvPool, KvType, KvWrite, PageTable, kv_write};
pub use drive::attention;
pub use splits::partials_len;

use std::ops::Range;

use crate::memory::SharedSlice;
use crate::quant::{self, ActBlock};
use crate::vector::{Rows, RowsMut};

/// Positions in a KV block.
pub const BLOCK: usize = 16;
/// Keys between two rescalings of a running softmax.
pub const GROUP: usize = 64;
/// Blocks of a group.
const BLOCKS: usize = GROUP / BLOCK;
/// Keys that one running softmax covers; the softmaxes of a row merge in order.
pub const SPLIT: usize = 256;

/// One attention layer over a ragged batch.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `[rows, heads * k_dim]`. Rows from `seq.len()` on are padding; their output is zero.
    pub q: Rows<'a>,
    /// The cache, with every visible position written. Query head `h` reads kv head `h / (heads / kv_heads)`.
    pub kv: KvPool<'a>,
    /// Query heads, a multiple of the cache's kv heads.
    pub heads: usize,
    /// For each row, the row of `pages` of its sequence.
    pub seq: &'a [u32],
    /// For each row, its position.
    pub pos: &'a [u32],
    /// For each row, one past the last position it sees. A row that sees nothing outputs zeros.
    pub until: &'a [u32],
    /// The blocks of each sequence.
    pub pages: PageTable<'a>,
    /// A row sees at most this many keys, the one at its own position being the last.
    pub window: Option<u32>,
    /// Scores are `scale` times the products of queries and keys.
    pub scale: f32,
    /// Scores become `c * tanh(score / c)`.
    pub softcap: Option<f32>,
}

/// Where attention goes.
#[derive(Debug)]
pub struct AttentionOut<'a> {
    /// `[rows, heads * v_dim]`.
    pub rows: RowsMut<'a>,
    /// If it is for products of 8-bit activations: the same, quantised, `[rows][heads * v_dim / 32]`. The values of a head must
    /// be whole blocks.
    pub blocks: Option<SharedSlice<'a, ActBlock>>,
}

impl AttentionOut<'_> {
    /// The blocks of some columns of a row.
    ///
    /// # Safety
    /// Nobody else uses them meanwhile.
    #[allow(
        clippy::mut_from_ref,
        reason = "the blocks are shared memory; the contract keeps the parts apart"
    )]
    unsafe fn blocks(&self, row: usize, columns: Range<usize>) -> Option<&mut [ActBlock]> {
        let start = (row * self.rows.dim() + columns.start) / quant::BLOCK;
        // SAFETY: the caller's contract.
        self.blocks
            .as_ref()
            .map(|blocks| unsafe { blocks.part_mut(start..start + columns.len() / quant::BLOCK) })
    }
}

impl Attention<'_> {
    /// Query heads that share a kv head.
    fn group(&self) -> usize {
        self.heads / self.kv.layout().kv_heads()
    }

    /// The keys that a row sees; empty when it sees none.
    fn visible(&self, row: usize) -> Range<usize> {
        let first =
            self.window.map_or(0, |window| (u64::from(self.pos[row]) + 1).saturating_sub(window.into()));
        let until = self.until[row] as usize;
        (first as usize).min(until)..until
    }

    /// Panics unless the parts fit together.
    fn check(&self, out: &AttentionOut<'_>) {
        let (out_rows, out_dim) = (out.rows.rows(), out.rows.dim());
        let layout = self.kv.layout();
        let kv_heads = layout.kv_heads();
        assert!(
            self.heads > 0 && self.heads.is_multiple_of(kv_heads),
            "{} query heads cannot share {kv_heads} kv heads evenly",
            self.heads
        );
        assert_eq!(self.q.dim(), self.heads * layout.k_dim(), "a query as long as a key for each head");
        let values = (self.q.rows(), self.heads * layout.v_dim());
        assert_eq!((out_rows, out_dim), values, "an output as long as a value for each query");
        if let Some(blocks) = &out.blocks {
            let whole = layout.v_dim().is_multiple_of(quant::BLOCK);
            assert!(
                whole && blocks.len() == out_rows * out_dim / quant::BLOCK,
                "blocks of all values of each head"
            );
        }
        assert!(self.seq.len() <= out_rows, "more sequence numbers than rows");
        assert!(
            self.pos.len() == self.seq.len() && self.until.len() == self.seq.len(),
            "a sequence, position and end for each row"
        );
    }
}
