//! Two products of one input and the gated activation of both, some columns at a time: what the products give stays in a
//! cache of the worker that combines it.

use std::cell::Cell;
use std::ops::Range;

use bytemuck::Zeroable;

use crate::matmul::{LEAD, Output, RowMap, claim_groups, first_group, matmul_groups, prefetch};
use crate::memory::SharedSlice;
use crate::pack::PackedMatrix;
use crate::pool::Worker;
use crate::quant::{ActBlock, BLOCK, quantise_row};
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

/// Bytes of the next weights that are asked for before columns are combined.
const MEANWHILE: usize = 6 << 10;

/// Rows that are combined at once. One at a time, each waited for its own last instruction: a step of 16 rows took 4 % longer.
const TOGETHER: usize = 16;

/// Working memory for some columns of all rows.
#[derive(Default)]
struct Scratch {
    /// Both products, `[rows, columns]` each, and of [`TOGETHER`] rows what is made of them.
    columns: Vec<f32>,
    /// That, quantised.
    blocks: Vec<ActBlock>,
}

thread_local! {
    /// Kept from call to call.
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { columns: Vec::new(), blocks: Vec::new() }) };
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
            return Some((gate, group(first_group(worker, each, bytes)), rows));
        };
        choice.grouped(ctx, |grouped| {
            let at = first_group(worker, grouped.total(each), bytes);
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
        scratch: &mut Scratch,
    ) {
        if rows.count == 0 {
            return;
        }
        let (n, per) = (matrices[0].n(), BLOCK / matrices[0].lanes());
        let columns = blocks.start * BLOCK..n.min(blocks.end * BLOCK);
        let (width, groups) = (columns.len(), blocks.start * per..matrices[0].groups().min(blocks.end * per));
        let cells = rows.count * width;
        let words = 2 * cells + TOGETHER * width;
        if scratch.columns.len() < words {
            scratch.columns.resize(words, 0.0);
        }
        let (gate, rest) = scratch.columns[..words].split_at_mut(cells);
        let (up, gated) = rest.split_at_mut(cells);
        let mut made = [gate, up];
        for ((p, matrix), made) in self.products.iter().zip(matrices).zip(&mut made) {
            let bias = p.bias.map(|b| ctx.weights[b].elements());
            let out = Output { data: SharedSlice::new(made), stride: width, from: columns.start };
            let rows = RowMap { output: None, ..rows };
            // SAFETY: the scratch memory is this worker's own.
            unsafe { matmul_groups(matrix, groups.clone(), p.x.activations(ctx), rows, bias, out) };
        }
        // Memory would be idle while what was made is combined: gate and up read 0.90 of the bus with this, 0.86 without. The
        // product has asked for the first bytes of the weights that follow.
        let next = matrices[0].group_onward(groups.end).get(LEAD..).unwrap_or(&[]);
        prefetch(ctx.isa, &next[..next.len().min(MEANWHILE)]);
        let [gate, up] = made;
        let row = |at| rows.output.map_or(at, |output: &[u32]| output[at] as usize);
        match &self.out {
            GatedOutput::Rows(out) => {
                for (at, (gate, up)) in gate.chunks_exact(width).zip(up.chunks_exact(width)).enumerate() {
                    let out = ctx.rows_mut(out).part(row(at)..row(at) + 1).columns(columns.clone());
                    vector::binary(ctx.isa, self.op, Src::Row(gate), Src::Row(up), out);
                }
            }
            GatedOutput::Blocks { at: start, per_row } => {
                let (each, most) = (blocks.len(), TOGETHER * blocks.len());
                if scratch.blocks.len() < most {
                    scratch.blocks.resize(most, ActBlock::zeroed());
                }
                let parts = gate.chunks(TOGETHER * width).zip(up.chunks(TOGETHER * width));
                for (part, (gate, up)) in parts.enumerate() {
                    let gated = &mut gated[..gate.len()];
                    let made = &mut scratch.blocks[..gate.len() / BLOCK];
                    let out = RowsMut::new(gated, gate.len());
                    vector::binary(ctx.isa, self.op, Src::Row(gate), Src::Row(up), out);
                    quantise_row(ctx.isa, gated, made);
                    for (at, made) in made.chunks_exact(each).enumerate() {
                        let row = row(part * TOGETHER + at);
                        // SAFETY: these blocks of this row are this worker's own.
                        let to = unsafe { ctx.blocks_mut(*start, row * per_row + blocks.start, each) };
                        to.copy_from_slice(made);
                    }
                }
            }
        }
    }
}
