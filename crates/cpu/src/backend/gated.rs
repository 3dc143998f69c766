//! Two products of one input and the gated activation of both, some columns at a time: what the products give stays in a
//! cache of the worker that combines it.

use std::cell::Cell;
use std::ops::Range;

use crate::matmul::{Output, RowMap, claim_groups, first_group, matmul_groups};
use crate::memory::SharedSlice;
use crate::pack::PackedMatrix;
use crate::pool::Worker;
use crate::quant::{BLOCK, quantise_row};
use crate::vector::{self, RowsMut, Src};

use super::experts::Choice;
use super::operand::RowsArg;
use super::steps::{Ctx, Product};

/// Gate and up, `op` of both, and where that goes.
pub(super) struct GatedStep {
    /// Both have the same rows and columns. Their results are kept nowhere.
    pub(super) products: [Product; 2],
    pub(super) op: vector::Binary,
    /// Where the weights are stacks of experts. The result has a row for each pair.
    pub(super) choice: Option<Choice>,
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
    /// Gate and up, of each expert where there are experts.
    pub(super) fn matrices<'a>(&self, ctx: &Ctx<'a>) -> [&'a [PackedMatrix]; 2] {
        self.products.each_ref().map(|p| match self.choice {
            Some(_) => ctx.weights[p.weight].matrices(),
            None => std::slice::from_ref(ctx.weights[p.weight].matrix()),
        })
    }

    /// The matrix and its lane group with which a worker will begin, and rows that it is multiplied with, about.
    pub(super) fn first<'a>(
        &self,
        ctx: &Ctx<'a>,
        worker: &Worker<'_>,
    ) -> Option<(&'a PackedMatrix, usize, usize)> {
        let matrices = self.matrices(ctx);
        let gate = &matrices[0][0];
        let (each, bytes) = (gate.n().div_ceil(BLOCK), block_bytes(matrices.map(|m| &m[0])));
        let group = |block| block * BLOCK / gate.lanes();
        let Some(choice) = &self.choice else {
            let rows = ctx.count(self.products[0].x.rows());
            return Some((gate, group(first_group(worker, each, bytes, rows)), rows));
        };
        choice.grouped(ctx, |grouped| {
            let at = first_group(worker, grouped.total(each), bytes, grouped.rows());
            let (expert, block) = grouped.part(at, each)?;
            Some((&matrices[0][expert], group(block), grouped.rows()))
        })
    }

    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let matrices = self.matrices(ctx);
        let first = matrices.map(|m| &m[0]);
        let (each, bytes) = (first[0].n().div_ceil(BLOCK), block_bytes(first));
        let mut scratch = SCRATCH.take();
        match &self.choice {
            None => {
                let rows = ctx.count(self.products[0].x.rows());
                while let Some(blocks) = claim_groups(worker, each, bytes, rows) {
                    self.blocks(ctx, first, blocks, RowMap::first(rows), &mut scratch);
                }
            }
            Some(choice) => choice.grouped(ctx, |grouped| {
                while let Some(claimed) = claim_groups(worker, grouped.total(each), bytes, grouped.rows()) {
                    grouped.walk(claimed, each, |expert, blocks, input, pairs| {
                        let rows = RowMap { count: input.len(), input: Some(input), output: Some(pairs) };
                        self.blocks(ctx, matrices.map(|m| &m[expert]), blocks, rows, &mut scratch);
                    });
                }
            }),
        }
        SCRATCH.set(scratch);
    }

    /// Some blocks of columns, this worker's own in the rows of the result that `rows` names. Whole blocks of what is
    /// quantised.
    fn blocks(
        &self,
        ctx: &Ctx,
        matrices: [&PackedMatrix; 2],
        blocks: Range<usize>,
        rows: RowMap<'_>,
        scratch: &mut Vec<f32>,
    ) {
        if rows.count == 0 {
            return;
        }
        let (n, per) = (matrices[0].n(), BLOCK / matrices[0].lanes());
        let columns = blocks.start * BLOCK..n.min(blocks.end * BLOCK);
        let (width, groups) = (columns.len(), blocks.start * per..matrices[0].groups().min(blocks.end * per));
        let words = (2 * rows.count + 1) * width;
        if scratch.len() < words {
            scratch.resize(words, 0.0);
        }
        let (gate, rest) = scratch[..words].split_at_mut(rows.count * width);
        let (up, gated) = rest.split_at_mut(rows.count * width);
        let mut made = [gate, up];
        for ((p, matrix), made) in self.products.iter().zip(matrices).zip(&mut made) {
            let bias = p.bias.map(|b| ctx.weights[b].elements());
            let out = Output { data: SharedSlice::new(made), stride: width, from: columns.start };
            let rows = RowMap { output: None, ..rows };
            // SAFETY: the scratch memory is this worker's own.
            unsafe { matmul_groups(matrix, groups.clone(), p.x.activations(ctx), rows, bias, out) };
        }
        let pairs = made[0].chunks_exact(width).zip(made[1].chunks_exact(width));
        for (at, (gate, up)) in pairs.enumerate() {
            let row = rows.output.map_or(at, |output| output[at] as usize);
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
}
