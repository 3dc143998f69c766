//! The kernels of a plan, as all workers run them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::isa::CpuIsa;
use crate::matmul::{Activations, Output, RowMap, claim_groups, first_group, gather_row, matmul_groups};
use crate::memory::SharedSlice;
use crate::pack::PackedMatrix;
use crate::pool::Worker;
use crate::quant::{ActBlock, BLOCK, quantise_row};
use crate::vector::{self, Rows, RowsMut, Src};
use graph::backend::DeviceError;

use super::division::Division;
use super::experts::{Choice, ExpertStep, ExpertSumStep, RouteStep};
use super::gated::GatedStep;
use super::operand::{Place, RowsArg};
use super::order::Touched;
use super::state::CpuState;
use super::weight::CpuWeight;

/// What a step sees. All pointers are to buffers of the plan's sizes that this job alone uses.
///
/// The workers write disjoint parts of a step's results and read what earlier steps wrote. A barrier lies wherever a worker
/// would touch what another writes ([`super::order`]); between barriers each goes on with its own part. The memory plan keeps
/// values that are alive together apart. Every `unsafe` of this file rests on that.
pub(super) struct Ctx<'a> {
    pub(super) isa: CpuIsa,
    pub(super) arena: *mut u32,
    pub(super) inputs: *const u32,
    pub(super) outputs: *mut u32,
    pub(super) scalars: &'a [u32],
    /// For each row, its sequence.
    pub(super) seq: &'a [u32],
    pub(super) weights: &'a [Arc<CpuWeight>],
    pub(super) states: &'a [Arc<CpuState>],
    pub(super) refused: &'a Mutex<Refused>,
}

impl Ctx<'_> {
    /// Rows that are real in this step.
    pub(super) fn count(&self, arg: &RowsArg) -> usize {
        self.real(arg.rows, arg.bound)
    }

    /// Of some rows those that are real, given their bound.
    pub(super) fn real(&self, rows: usize, bound: Option<(usize, usize)>) -> usize {
        bound.map_or(rows, |(scalar, per)| (self.scalars[scalar] as usize * per).min(rows))
    }

    /// The first word of a value. What it may be used for is as for `rows` and `rows_mut`.
    pub(super) fn start(&self, arg: &RowsArg) -> *mut u32 {
        match arg.at {
            Place::Arena(at) => self.arena.wrapping_add(at),
            Place::Input(at) => self.inputs.cast_mut().wrapping_add(at),
            Place::Output(at) => self.outputs.wrapping_add(at),
        }
    }

    /// The real rows of an operand.
    pub(super) fn rows(&self, arg: &RowsArg) -> Rows<'_> {
        // SAFETY: compile time placed the rows inside their buffer; nobody writes meanwhile what this worker reads of it.
        unsafe { Rows::from_raw(self.start(arg).cast(), self.count(arg), arg.width, arg.stride) }
    }

    /// An operand of a row kernel; a broadcast row is one row for all.
    fn src(&self, arg: &RowsArg) -> Src<'_> {
        if arg.stride == 0 { Src::Row(self.one_row(arg)) } else { Src::Rows(self.rows(arg)) }
    }

    fn one_row(&self, arg: &RowsArg) -> &[f32] {
        // SAFETY: as for `rows`; a broadcast operand has at least this one row.
        unsafe { std::slice::from_raw_parts(self.start(arg).cast(), arg.width) }
    }

    /// The real rows of a result. Each worker may touch only its part.
    pub(super) fn rows_mut(&self, arg: &RowsArg) -> RowsMut<'_> {
        // SAFETY: inside the buffer by construction; the caller writes only the part that is its own.
        unsafe { RowsMut::from_raw(self.start(arg).cast(), self.count(arg), arg.width, arg.stride) }
    }

    /// u32 elements of an operand whose rows are adjacent, real rows only.
    pub(super) fn words(&self, arg: &RowsArg) -> &[u32] {
        // SAFETY: compile time saw that the rows are adjacent and inside their buffer; nobody writes meanwhile what this worker reads of it.
        unsafe { std::slice::from_raw_parts(self.start(arg), self.count(arg) * arg.width) }
    }

    /// All f32 from the first to the last real row.
    fn span(&self, arg: &RowsArg) -> &[f32] {
        let n = self.count(arg);
        let len = if n == 0 { 0 } else { (n - 1) * arg.stride + arg.width };
        // SAFETY: as for `rows`.
        unsafe { std::slice::from_raw_parts(self.start(arg).cast(), len) }
    }

    pub(super) fn span_mut(&self, arg: &RowsArg) -> SharedSlice<'_, f32> {
        let n = self.count(arg);
        let len = if n == 0 { 0 } else { (n - 1) * arg.stride + arg.width };
        // SAFETY: as for `rows_mut`.
        unsafe { SharedSlice::from_raw(self.start(arg).cast(), len) }
    }

    fn blocks(&self, at: usize, count: usize) -> &[ActBlock] {
        // SAFETY: compile time reserved room for the blocks of a whole bucket, aligned to a cache line.
        unsafe { std::slice::from_raw_parts(self.arena.wrapping_add(at).cast(), count) }
    }

    /// Blocks from number `first` of those at a word of the arena.
    ///
    /// # Safety
    /// They are this worker's own until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "the arena is shared memory; the contract keeps the parts apart")]
    pub(super) unsafe fn blocks_mut(&self, at: usize, first: usize, count: usize) -> &mut [ActBlock] {
        let start = self.arena.wrapping_add(at).cast::<ActBlock>().wrapping_add(first);
        // SAFETY: as for `blocks`; the caller vouches that nobody else uses these.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }

    /// Notes that an op met a row whose values it must not pass on. `None` where its rows are not those of the step.
    pub(super) fn refuse(&self, op: &'static str, problem: &'static str, row: Option<usize>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // One op refuses rows between two barriers, and all workers say the same of it.
        refused.first.get_or_insert((op, problem));
        match row {
            Some(row) => drop(refused.rows.insert(row as u32)),
            None => refused.whole = true,
        }
    }
}

/// What the ops of a submission refused.
#[derive(Default)]
pub(super) struct Refused {
    /// The first op that did, and why.
    first: Option<(&'static str, &'static str)>,
    rows: BTreeSet<u32>,
    /// It is not known which rows.
    whole: bool,
}

impl Refused {
    /// The error to report, if anything was refused.
    pub(super) fn error(self) -> Option<DeviceError> {
        let (op, problem) = self.first?;
        let rows = if self.whole { vec![] } else { self.rows.into_iter().collect() };
        Some(DeviceError::Numeric { op: op.to_owned(), problem: problem.to_owned(), rows })
    }
}

/// A matrix of a product with its activations, bias and result.
pub(super) struct Product {
    pub(super) x: Input,
    pub(super) weight: usize,
    pub(super) bias: Option<usize>,
    pub(super) out: RowsArg,
}

/// Where a product's activations come from.
#[derive(Clone, Copy)]
pub(super) enum Input {
    /// The f32 rows themselves.
    Exact(RowsArg),
    /// Blocks that a [`Step::Quantise`] left at this word of the arena, for these rows.
    Quantised { at: usize, rows: RowsArg },
}

impl Input {
    pub(super) fn rows(&self) -> &RowsArg {
        match self {
            Input::Exact(rows) | Input::Quantised { rows, .. } => rows,
        }
    }

    /// The words of the blocks for some rows, from a word of the arena on.
    fn blocks(rows: &RowsArg, at: usize) -> RowsArg {
        let width = rows.width / BLOCK * size_of::<ActBlock>() / size_of::<u32>();
        RowsArg { at: Place::Arena(at), width, stride: width, ..*rows }
    }

    pub(super) fn activations<'a>(&self, ctx: &'a Ctx) -> Activations<'a> {
        match self {
            Input::Exact(rows) => Activations::F32 { data: ctx.span(rows), stride: rows.stride },
            Input::Quantised { at, rows } => {
                Activations::Quantised(ctx.blocks(*at, ctx.count(rows) * rows.width / BLOCK))
            }
        }
    }
}

/// A table whose rows are gathered.
pub(super) enum Table {
    Weight(usize),
    Rows(RowsArg),
}

/// One kernel with its operands.
pub(super) enum Step {
    Quantise {
        x: RowsArg,
        at: usize,
        /// Divided as the step that makes whole rows, instead of by columns.
        by_rows: bool,
    },
    /// Products that share the workers; all have the same rows.
    Products(Vec<Product>),
    Gated(GatedStep),
    Gather {
        table: Table,
        ids: RowsArg,
        out: RowsArg,
    },
    Unary {
        op: vector::Unary,
        x: RowsArg,
        out: RowsArg,
    },
    Binary {
        op: vector::Binary,
        a: RowsArg,
        b: RowsArg,
        out: RowsArg,
    },
    /// The second operand is elements of a weight, repeated for every row.
    BinaryRow {
        op: vector::Binary,
        a: RowsArg,
        row: usize,
        out: RowsArg,
    },
    /// Of pieces of `width` elements: whole rows, or heads.
    RmsNorm {
        x: RowsArg,
        weight: usize,
        width: usize,
        eps: f32,
        out: RowsArg,
    },
    AddRmsNorm {
        a: RowsArg,
        b: RowsArg,
        weight: usize,
        eps: f32,
        sum: RowsArg,
        out: RowsArg,
    },
    /// Fills the tables that [`Step::Rope`]s read.
    Angles {
        pos: RowsArg,
        inv_freq: usize,
        magnitude: f32,
        cos: RowsArg,
        sin: RowsArg,
    },
    Rope {
        x: RowsArg,
        head_dim: usize,
        cos: RowsArg,
        sin: RowsArg,
        out: RowsArg,
    },
    Route(RouteStep),
    Experts(ExpertStep),
    ExpertSum(ExpertSumStep),
    ShortConv(super::state::ConvStep),
    DeltaRule(super::state::DeltaStep),
    KvWrite(super::state::KvWriteStep),
    Attention(super::state::AttentionStep),
    Sample(super::sample::SampleStep),
    Feed(super::sample::FeedStep),
}

/// A step in its place.
pub(super) struct Planned {
    /// Its index among the plan's selections.
    pub(super) selection: usize,
    pub(super) step: Step,
    /// Whether a barrier lies before it.
    pub(super) waits: bool,
}

/// Rows of a product that is bound by reading its weights.
const FEW: usize = 4;

fn columns<'a>(src: Src<'a>, rows: &Range<usize>, cols: &Range<usize>) -> Src<'a> {
    match src {
        Src::Rows(r) => Src::Rows(r.part(rows.clone()).columns(cols.clone())),
        Src::Row(r) => Src::Row(&r[cols.clone()]),
    }
}

impl Step {
    /// How the workers divide it, where that is fixed; each then does [`Step::part`].
    pub(super) fn division(&self) -> Option<Division> {
        Some(match self {
            Step::Unary { out, .. } | Step::Binary { out, .. } | Step::BinaryRow { out, .. } => {
                Division::columns(out)
            }
            Step::RmsNorm { width, out, .. } => Division::heads(out, out.width / width),
            Step::AddRmsNorm { out, .. } | Step::Gather { out, .. } => Division::rows(out),
            Step::Angles { pos, .. } => Division::rows(pos),
            Step::Rope { head_dim, out, .. } => Division::heads(out, out.width / head_dim),
            Step::KvWrite(step) => Division::heads(&step.k, step.layout.kv_heads()),
            Step::Route(step) => Division::rows(&step.weights),
            Step::ExpertSum(step) => Division::columns(&step.out),
            Step::Sample(step) => Division::rows(&step.logits),
            Step::Feed(step) => Division::rows(&step.ids),
            Step::Quantise { x, by_rows: true, .. } => Division::rows(x),
            Step::Quantise { x, .. } => Division::columns(x),
            Step::Products(_)
            | Step::Gated(_)
            | Step::Experts(_)
            | Step::ShortConv(_)
            | Step::DeltaRule(_)
            | Step::Attention(_) => return None,
        })
    }

    /// What it reads and writes, but for weights, and for states other than a KV cache that it writes; `None` where that is not
    /// told.
    pub(super) fn touched(&self) -> Option<Touched> {
        Some(match self {
            Step::Quantise { x, at, .. } => Touched::new(&[x], &[&Input::blocks(x, *at)]),
            Step::Products(products) => {
                let input = |p: &Product| match p.x {
                    Input::Exact(rows) => rows,
                    Input::Quantised { at, rows } => Input::blocks(&rows, at),
                };
                let (reads, writes) = products.iter().map(|p| (input(p), p.out)).unzip();
                Touched { reads, writes, cache: None }
            }
            Step::Unary { x, out, .. } | Step::RmsNorm { x, out, .. } => Touched::new(&[x], &[out]),
            Step::Binary { a, b, out, .. } => Touched::new(&[a, b], &[out]),
            Step::BinaryRow { a, out, .. } => Touched::new(&[a], &[out]),
            Step::AddRmsNorm { a, b, sum, out, .. } => Touched::new(&[a, b], &[sum, out]),
            Step::Angles { pos, cos, sin, .. } => Touched::new(&[pos], &[cos, sin]),
            Step::Rope { x, cos, sin, out, .. } => Touched::new(&[x, cos, sin], &[out]),
            Step::KvWrite(step) => Touched {
                cache: Some(step.state),
                ..Touched::new(&[&step.k, &step.v, &step.pos, &step.pages], &[])
            },
            Step::Route(step) => Touched::new(&[&step.logits], &[&step.weights, &step.experts]),
            _ => return None,
        })
    }

    pub(super) fn multiplies(&self) -> bool {
        matches!(self, Step::Products(_) | Step::Gated(_) | Step::Experts(_))
    }

    /// What the experts of this step are chosen by.
    fn choice(&self) -> Option<&Choice> {
        match self {
            Step::Gated(step) => step.choice.as_ref(),
            Step::Experts(step) => Some(&step.choice),
            _ => None,
        }
    }

    /// Of a product of few rows, the weights from where this worker will begin; otherwise nothing. `None` for other steps.
    ///
    /// `done` is the step that this worker has been through. Who is chosen is not known but where that step knew it: the
    /// ids may just be being written.
    pub(super) fn weights<'a>(&self, ctx: &Ctx<'a>, worker: &Worker<'_>, done: &Step) -> Option<&'a [u8]> {
        if let Some(choice) = self.choice()
            && !done.choice().is_some_and(|known| known.has_ids_of(choice))
        {
            return Some(&[]);
        }
        let (matrix, first, rows) = match self {
            Step::Products(products) => {
                let matrix = |p: &Product| ctx.weights[p.weight].matrix();
                let rows = ctx.count(products.first()?.x.rows());
                let (total, bytes) = extent(products, matrix);
                let mut at = first_group(worker, total, bytes);
                let mut parts = in_parts(products, worker, |p| matrix(p).groups());
                parts.find_map(|(p, groups)| {
                    let here = (at < groups.len()).then_some((matrix(p), groups.start + at, rows));
                    at = at.saturating_sub(groups.len());
                    here
                })?
            }
            Step::Gated(step) => step.first(ctx, worker)?,
            Step::Experts(step) => step.first(ctx, worker)?,
            _ => return None,
        };
        Some(if (1..=FEW).contains(&rows) { matrix.group_onward(first) } else { &[] })
    }

    /// This worker's part.
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        if let Some(division) = self.division() {
            return division.over(ctx, worker, |rows, columns| self.part(ctx, rows, columns));
        }
        match self {
            Step::Products(products) => multiply(ctx, worker, products),
            Step::Gated(step) => step.run(ctx, worker),
            Step::Experts(step) => step.run(ctx, worker),
            Step::ShortConv(step) => step.run(ctx, worker),
            Step::DeltaRule(step) => step.run(ctx, worker),
            Step::Attention(step) => step.run(ctx, worker),
            _ => unreachable!("a step that is divided"),
        }
    }

    /// Some rows and columns of a step that is divided: this worker's own.
    fn part(&self, ctx: &Ctx, rows: Range<usize>, cols: Range<usize>) {
        let made = |out: &RowsArg| ctx.rows_mut(out).part(rows.clone()).columns(cols.clone());
        let read = |x: &RowsArg| columns(ctx.src(x), &rows, &cols);
        match self {
            Step::Quantise { x, at, .. } => {
                let (per_row, count) = (x.width / BLOCK, cols.len() / BLOCK);
                let part = ctx.rows(x).columns(cols.clone());
                for row in rows {
                    // SAFETY: these blocks are this worker's own.
                    let out = unsafe { ctx.blocks_mut(*at, row * per_row + cols.start / BLOCK, count) };
                    quantise_row(ctx.isa, part.row(row), out);
                }
            }
            Step::Unary { op, x, out } => vector::unary(ctx.isa, *op, read(x), made(out)),
            Step::Binary { op, a, b, out } => vector::binary(ctx.isa, *op, read(a), read(b), made(out)),
            Step::BinaryRow { op, a, row, out } => {
                let row = Src::Row(&ctx.weights[*row].elements()[cols.clone()]);
                vector::binary(ctx.isa, *op, read(a), row, made(out));
            }
            Step::RmsNorm { x, weight, width, eps, out } => {
                let weight = ctx.weights[*weight].elements();
                vector::rms_norm(ctx.isa, read(x), weight, *width, *eps, made(out));
            }
            Step::AddRmsNorm { a, b, weight, eps, sum, out } => {
                let weight = ctx.weights[*weight].elements();
                vector::add_rms_norm(ctx.isa, read(a), read(b), weight, *eps, made(sum), made(out));
            }
            Step::Angles { pos, inv_freq, magnitude, cos, sin } => {
                let (pos, inv_freq) = (ctx.words(pos), ctx.weights[*inv_freq].elements());
                let [mut cos, mut sin] = [cos, sin].map(|table| ctx.rows_mut(table));
                for row in rows {
                    let [cos, sin] = [cos.row(row), sin.row(row)];
                    vector::rope_angles(&pos[row..=row], inv_freq, *magnitude, cos, sin);
                }
            }
            Step::Rope { x, head_dim, cos, sin, out } => {
                let [cos, sin] = [cos, sin].map(|table| ctx.rows(table).part(rows.clone()));
                vector::rope(ctx.isa, read(x), *head_dim, cos, sin, made(out));
            }
            Step::Gather { table, ids, out } => gather(ctx, table, ids, out, rows),
            Step::Route(step) => step.part(ctx, rows),
            Step::ExpertSum(step) => step.part(ctx, rows, cols),
            Step::KvWrite(step) => step.part(ctx, rows, cols),
            Step::Sample(step) => step.part(ctx, rows),
            Step::Feed(step) => step.part(ctx, rows),
            _ => unreachable!("a step that is not divided"),
        }
    }
}

fn multiply(ctx: &Ctx, worker: &Worker<'_>, products: &[Product]) {
    let n = products.first().map_or(0, |p| ctx.count(p.x.rows()));
    if n == 0 {
        return;
    }
    let matrix = |p: &Product| ctx.weights[p.weight].matrix();
    let (total, group_bytes) = extent(products, matrix);
    while let Some(claimed) = claim_groups(worker, total, group_bytes, n) {
        let mut first = 0;
        for (p, groups) in in_parts(products, worker, |p| matrix(p).groups()) {
            let start = claimed.start.max(first) - first;
            let end = claimed.end.min(first + groups.len()).saturating_sub(first);
            first += groups.len();
            if start < end {
                let bias = p.bias.map(|b| ctx.weights[b].elements());
                let out = Output { data: ctx.span_mut(&p.out), stride: p.out.stride, from: 0 };
                let (x, groups) = (p.x.activations(ctx), groups.start + start..groups.start + end);
                // SAFETY: the claimed groups of this matrix are this worker's own.
                unsafe { matmul_groups(matrix(p), groups, x, RowMap::first(n), bias, out) };
            }
        }
    }
}

/// Lane groups of some products, and bytes of one.
fn extent<'a>(products: &[Product], matrix: impl Fn(&Product) -> &'a PackedMatrix) -> (usize, usize) {
    let total = products.iter().map(|p| matrix(p).groups()).sum();
    (total, products.iter().map(|p| matrix(p).group_bytes()).max().unwrap_or(1))
}

/// The groups of all products in the order in which they are claimed: first a part of each, as there are workers, so that a
/// worker makes the same columns of siblings, which what follows combines.
fn in_parts<'p>(
    products: &'p [Product],
    worker: &Worker<'_>,
    groups: impl Fn(&Product) -> usize,
) -> impl Iterator<Item = (&'p Product, Range<usize>)> {
    let count = worker.count();
    (0..count).flat_map(move |part| products.iter().map(move |p| (part, p))).map(move |(part, p)| {
        let groups = groups(p);
        (p, groups * part / count..groups * (part + 1) / count)
    })
}

fn gather(ctx: &Ctx, table: &Table, ids: &RowsArg, out: &RowsArg, rows: Range<usize>) {
    let (ids, mut out) = (ctx.words(ids), ctx.rows_mut(out));
    for row in rows {
        let id = ids[row] as usize;
        let to = out.row(row);
        match table {
            Table::Weight(w) => {
                let w = ctx.weights[*w].matrix();
                if id < w.n() { gather_row(w, id, to) } else { to.fill(0.0) }
            }
            Table::Rows(from) => {
                let from = ctx.rows(from);
                if id < from.rows() { to.copy_from_slice(from.row(id)) } else { to.fill(0.0) }
            }
        }
    }
}
