//! Two products of one input and the gated activation of both, some columns at a time: what the products give stays in a
//! cache of the worker that combines it.

use std::cell::Cell;

use crate::matmul::{Output, RowMap, claim_groups, first_group, matmul_groups};
use crate::memory::SharedSlice;
use crate::pack::PackedMatrix;
use crate::pool::Worker;
use crate::quant::{BLOCK, quantise_row};
use crate::vector::{self, RowsMut, Src};

use super::operand::RowsArg;
use super::steps::{Ctx, Product};

/// Gate and up, `op` of both, and where that goes.
pub(super) struct GatedStep {
    /// Both have the same rows and columns. Their results are kept nowhere.
    pub(super) products: [Product; 2],
    pub(super) op: vector::Binary,
    pub(super) out: GatedOutput,
}

/// What follows reads f32 rows, or nothing but blocks.
pub(super) enum GatedOutput {
    Rows(RowsArg),
    /// At this word of the arena, for rows of so many blocks.
    Blocks {
        at: usize,
        per_row: usize,
    },
}

thread_local! {
    /// Columns of both products, kept from call to call.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Bytes of the weights of [`BLOCK`] columns.
fn block_bytes(matrices: [&PackedMatrix; 2]) -> usize {
    matrices.iter().map(|m| BLOCK / m.lanes() * m.group_bytes()).sum()
}

impl GatedStep {
    fn matrices<'a>(&self, ctx: &Ctx<'a>) -> [&'a PackedMatrix; 2] {
        self.products.each_ref().map(|p| ctx.weights[p.weight].matrix())
    }

    /// The lane group with which a worker will begin.
    pub(super) fn first_group(&self, ctx: &Ctx, worker: &Worker<'_>) -> usize {
        let (matrices, rows) = (self.matrices(ctx), ctx.count(self.products[0].x.rows()));
        let blocks = matrices[0].n().div_ceil(BLOCK);
        first_group(worker, blocks, block_bytes(matrices), rows) * BLOCK / matrices[0].lanes()
    }

    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let rows = ctx.count(self.products[0].x.rows());
        if rows == 0 {
            return;
        }
        let matrices = self.matrices(ctx);
        let (n, per) = (matrices[0].n(), BLOCK / matrices[0].lanes());
        let bytes = block_bytes(matrices);
        let mut scratch = SCRATCH.take();
        // Whole blocks of what is quantised.
        while let Some(blocks) = claim_groups(worker, n.div_ceil(BLOCK), bytes, rows) {
            let columns = blocks.start * BLOCK..n.min(blocks.end * BLOCK);
            let (width, groups) =
                (columns.len(), blocks.start * per..matrices[0].groups().min(blocks.end * per));
            let words = (2 * rows + 1) * width;
            if scratch.len() < words {
                scratch.resize(words, 0.0);
            }
            let (gate, rest) = scratch[..words].split_at_mut(rows * width);
            let (up, gated) = rest.split_at_mut(rows * width);
            let mut made = [gate, up];
            for ((p, matrix), made) in self.products.iter().zip(matrices).zip(&mut made) {
                let bias = p.bias.map(|b| ctx.weights[b].elements());
                let out = Output { data: SharedSlice::new(made), stride: width, from: columns.start };
                // SAFETY: the scratch memory is this worker's own.
                unsafe {
                    matmul_groups(
                        matrix,
                        groups.clone(),
                        p.x.activations(ctx),
                        RowMap::first(rows),
                        bias,
                        out,
                    );
                }
            }
            let pairs = made[0].chunks_exact(width).zip(made[1].chunks_exact(width));
            for (row, (gate, up)) in pairs.enumerate() {
                let (gate, up) = (Src::Row(gate), Src::Row(up));
                match &self.out {
                    GatedOutput::Rows(out) => {
                        let out = ctx.rows_mut(out).part(row..row + 1).columns(columns.clone());
                        vector::binary(ctx.isa, self.op, gate, up, out);
                    }
                    GatedOutput::Blocks { at, per_row } => {
                        vector::binary(ctx.isa, self.op, gate, up, RowsMut::new(gated, width));
                        // SAFETY: these blocks of this row are this worker's own.
                        let to = unsafe { ctx.blocks_mut(*at, row * per_row + blocks.start, blocks.len()) };
                        quantise_row(ctx.isa, gated, to);
                    }
                }
            }
        }
        SCRATCH.set(scratch);
    }
}
