//! Mixtures of experts: who takes which, products with the chosen ones, and their sum.

use std::cell::Cell;
use std::ops::Range;

use tensor::ops::moe::REFUSED_LOGITS;

use crate::matmul::{Output, RowMap, claim_groups, first_group, matmul_groups};
use crate::pack::PackedMatrix;
use crate::pool::Worker;
use crate::vector::{self, RowsMut};

use super::operand::RowsArg;
use super::steps::{Ctx, Product};

/// Which expert each pair of a row and a slot has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Ids, a row of slots for each row.
    pub(super) ids: RowsArg,
    pub(super) experts: usize,
    /// Pairs that share a row of activations: all slots of a row, or 1 where every pair has its own.
    pub(super) shared: usize,
}

impl Choice {
    /// Whether two steps have the pairs of the same ids.
    pub(super) fn has_ids_of(&self, other: &Choice) -> bool {
        self.ids == other.ids && self.experts == other.experts
    }

    /// Calls `with` on the pairs, grouped by expert.
    ///
    /// Each worker groups them by itself, which takes no longer than waiting for one that does.
    pub(super) fn grouped<T>(&self, ctx: &Ctx, with: impl FnOnce(&Grouped) -> T) -> T {
        let mut grouped = GROUPED.take();
        grouped.fill(self, ctx.words(&self.ids));
        let result = with(&grouped);
        GROUPED.set(grouped);
        result
    }
}

/// Pairs of a row and a slot by the expert they chose; an expert's are in order.
#[derive(Default)]
pub(super) struct Grouped {
    /// The experts that were chosen, in order, each with its pairs among those below.
    chosen: Vec<(usize, Range<usize>)>,
    input: Vec<u32>,
    pairs: Vec<u32>,
    next: Vec<u32>,
}

thread_local! {
    /// Memory kept from call to call.
    static GROUPED: Cell<Grouped> = const { Cell::new(Grouped::EMPTY) };
    static ROUTING: Cell<(Vec<f32>, Vec<u32>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

impl Grouped {
    const EMPTY: Grouped =
        Grouped { chosen: Vec::new(), input: Vec::new(), pairs: Vec::new(), next: Vec::new() };

    fn fill(&mut self, choice: &Choice, ids: &[u32]) {
        let Grouped { chosen, input, pairs, next } = self;
        chosen.clear();
        next.clear();
        next.resize(choice.experts, 0);
        for &expert in ids {
            next[expert as usize] += 1;
        }
        let mut start = 0;
        for (expert, next) in next.iter_mut().enumerate() {
            let count = std::mem::replace(next, start) as usize;
            if count > 0 {
                let first = start as usize;
                chosen.push((expert, first..first + count));
                start += count as u32;
            }
        }
        input.resize(ids.len(), 0);
        pairs.resize(ids.len(), 0);
        for (pair, &expert) in ids.iter().enumerate() {
            let at = next[expert as usize] as usize;
            next[expert as usize] += 1;
            input[at] = (pair / choice.shared) as u32;
            pairs[at] = pair as u32;
        }
    }

    /// The experts that were chosen, and how many pairs each has.
    pub(super) fn chosen(&self) -> impl Iterator<Item = (usize, usize)> {
        self.chosen.iter().map(|(expert, pairs)| (*expert, pairs.len()))
    }

    /// Pairs of an expert, about.
    pub(super) fn rows(&self) -> usize {
        self.pairs.len() / self.chosen.len().max(1)
    }

    /// How many parts there are, `each` for an expert.
    pub(super) fn total(&self, each: usize) -> usize {
        self.chosen.len() * each
    }

    /// The expert of a part, and which of its parts it is.
    pub(super) fn part(&self, at: usize, each: usize) -> Option<(usize, usize)> {
        self.chosen.get(at / each).map(|(expert, _)| (*expert, at % each))
    }

    /// Calls `run` with an expert, a range of its parts, and the rows of activations and pairs, for all of `claimed`.
    pub(super) fn walk(
        &self,
        claimed: Range<usize>,
        each: usize,
        mut run: impl FnMut(usize, Range<usize>, &[u32], &[u32]),
    ) {
        let mut at = claimed.start;
        while at < claimed.end {
            let (expert, pairs) = &self.chosen[at / each];
            let start = at % each;
            let end = (start + claimed.end - at).min(each);
            run(*expert, start..end, &self.input[pairs.clone()], &self.pairs[pairs.clone()]);
            at += end - start;
        }
    }
}

/// Products of rows with the experts that they chose.
pub(super) struct ExpertStep {
    /// Its result has a row for each pair.
    pub(super) product: Product,
    pub(super) choice: Choice,
}

impl ExpertStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let Product { x, weight, out, .. } = &self.product;
        let (x, matrices) = (x.activations(ctx), ctx.weights[*weight].matrices());
        let (groups, bytes) = (matrices[0].groups(), matrices[0].group_bytes());
        self.choice.grouped(ctx, |grouped| {
            while let Some(claimed) = claim_groups(worker, grouped.total(groups), bytes, grouped.rows()) {
                grouped.walk(claimed, groups, |expert, groups, input, pairs| {
                    let rows = RowMap { count: input.len(), input: Some(input), output: Some(pairs) };
                    let out = Output { data: ctx.span_mut(out), stride: out.stride, from: 0 };
                    // SAFETY: the claimed groups of this expert are this worker's own, and every pair has one expert.
                    unsafe { matmul_groups(&matrices[expert], groups, x, rows, None, out) };
                });
            }
        });
    }

    /// The matrix and its lane group with which a worker will begin, and rows of an expert, about.
    pub(super) fn first<'a>(
        &self,
        ctx: &Ctx<'a>,
        worker: &Worker<'_>,
    ) -> Option<(&'a PackedMatrix, usize, usize)> {
        let matrices = ctx.weights[self.product.weight].matrices();
        let (groups, bytes) = (matrices[0].groups(), matrices[0].group_bytes());
        self.choice.grouped(ctx, |grouped| {
            let at = first_group(worker, grouped.total(groups), bytes);
            grouped.part(at, groups).map(|(expert, group)| (&matrices[expert], group, grouped.rows()))
        })
    }
}

/// [`tensor::Op::Route`].
pub(super) struct RouteStep {
    pub(super) logits: RowsArg,
    pub(super) renormalise: bool,
    pub(super) weights: RowsArg,
    /// Rows of ids that lie one after another.
    pub(super) experts: RowsArg,
    /// The rows are those of the step.
    pub(super) of_step: bool,
}

impl RouteStep {
    /// Some rows, this worker's own.
    pub(super) fn part(&self, ctx: &Ctx, rows: Range<usize>) {
        let (logits, out) = (ctx.rows(&self.logits), ctx.rows_mut(&self.weights));
        let (mut probabilities, mut scratch) = ROUTING.take();
        probabilities.resize(logits.dim(), 0.0);
        for row in rows {
            let p = RowsMut::new(&mut probabilities, logits.dim());
            vector::softmax(ctx.isa, logits.part(row..row + 1).into(), p);
            let width = self.experts.width;
            // SAFETY: this row of both results is this worker's own; `experts` is contiguous.
            let (mut part, ids) = unsafe {
                let at = ctx.start(&self.experts).wrapping_add(row * width);
                (out.alias().part(row..row + 1), std::slice::from_raw_parts_mut(at, width))
            };
            let chosen = part.row(0);
            // Softmax makes NaN of a whole row that has one, or no finite largest logit.
            if vector::top_k(&probabilities, &mut scratch, chosen, ids).is_err() {
                // The row goes on with some experts, and the others of the step with theirs.
                ids.fill(0);
                chosen.fill(0.0);
                ctx.refuse("route", REFUSED_LOGITS, self.of_step.then_some(row));
            }
            if self.renormalise {
                let sum: f32 = chosen.iter().sum();
                chosen.iter_mut().for_each(|w| *w /= sum);
            }
        }
        ROUTING.set((probabilities, scratch));
    }
}

/// [`tensor::Op::ExpertSum`].
pub(super) struct ExpertSumStep {
    /// A row for each pair.
    pub(super) y: RowsArg,
    pub(super) weights: RowsArg,
    pub(super) out: RowsArg,
}

impl ExpertSumStep {
    /// Some rows and columns, this worker's own.
    pub(super) fn part(&self, ctx: &Ctx, rows: Range<usize>, columns: Range<usize>) {
        let weights = ctx.rows(&self.weights);
        let slots = weights.dim();
        let y = ctx.rows(&self.y).part(rows.start * slots..rows.end * slots).columns(columns.clone());
        let out = ctx.rows_mut(&self.out).part(rows.clone()).columns(columns);
        vector::weighted_sums(ctx.isa, y, weights.part(rows), out);
    }
}
