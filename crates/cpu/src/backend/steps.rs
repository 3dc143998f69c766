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

use super::experts::{Choice, ExpertStep, ExpertSumStep, RouteStep};
use super::gated::GatedStep;
use super::operand::{Place, RowsArg};
use super::order::{Division, Touched};
use super::state::CpuState;
use super::weight::CpuWeight;

/// What a step sees. All pointers are to buffers of the plan's sizes that this job alone uses.
///
/// The workers write disjoint parts of a step's results and read what earlier steps wrote; a barrier lies between
/// steps, and the memory plan keeps values that are alive together apart. Every `unsafe` of this file rests on that.
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
        arg.bound.map_or(arg.rows, |(scalar, per)| (self.scalars[scalar] as usize * per).min(arg.rows))
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
        // SAFETY: compile time placed the rows inside their buffer; nobody writes an operand during the step.
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
        // SAFETY: compile time saw that the rows are adjacent and inside their buffer; nobody writes an operand during the step.
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
        // A barrier lies between steps, and within one all workers say the same.
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
        split: Split,
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

/// How workers divide a step on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Split {
    /// By rows.
    Rows,
    /// By columns, which are those that each worker made of a product, unless there is little to divide.
    Elements,
    /// By rows, or by heads where there are fewer rows than workers.
    Heads,
}

/// Runs `part` over the real rows, divided over the workers.
pub(super) fn over_rows(n: usize, worker: &Worker<'_>, mut part: impl FnMut(Range<usize>)) {
    let range = worker.share(n, 1);
    if !range.is_empty() {
        part(range);
    }
}

/// Runs `part` over rows and columns, divided as [`Split::Elements`] says.
pub(super) fn over_elements(
    n: usize,
    width: usize,
    worker: &Worker<'_>,
    mut part: impl FnMut(Range<usize>, Range<usize>),
) {
    const SMALL: usize = 2048;
    // Whole cache lines, and blocks of what is quantised.
    const ALIGN: usize = 64;
    if n * width <= SMALL || n >= worker.count() && width < 4 * ALIGN * worker.count() {
        over_rows(n, worker, |rows| part(rows, 0..width));
    } else {
        let columns = worker.share(width, ALIGN);
        if !columns.is_empty() {
            part(0..n, columns);
        }
    }
}

/// Runs `part` over rows and heads, divided as [`Split::Heads`] says.
pub(super) fn over_heads(
    n: usize,
    heads: usize,
    worker: &Worker<'_>,
    part: impl FnOnce(Range<usize>, Range<usize>),
) {
    let (rows, heads) =
        if n >= worker.count() { (worker.share(n, 1), 0..heads) } else { (0..n, worker.share(heads, 1)) };
    if !rows.is_empty() && !heads.is_empty() {
        part(rows, heads);
    }
}

fn columns<'a>(src: Src<'a>, rows: &Range<usize>, cols: &Range<usize>) -> Src<'a> {
    match src {
        Src::Rows(r) => Src::Rows(r.part(rows.clone()).columns(cols.clone())),
        Src::Row(r) => Src::Row(&r[cols.clone()]),
    }
}

impl Step {
    /// How the workers divide it, where that is fixed by their number and by how many rows there are.
    pub(super) fn division(&self) -> Option<Division> {
        Some(match self {
            Step::Unary { out, .. } | Step::Binary { out, .. } | Step::BinaryRow { out, .. } => {
                Division::elements(out)
            }
            Step::RmsNorm { width, out, .. } if *width < out.width => Division::heads(out, out.width / width),
            Step::RmsNorm { out, .. } | Step::AddRmsNorm { out, .. } => Division::rows(out),
            Step::Angles { pos, .. } => Division::rows(pos),
            Step::Rope { head_dim, out, .. } => Division::heads(out, out.width / head_dim),
            Step::KvWrite(step) => Division::heads(&step.k, step.layout.kv_heads()),
            Step::Route(step) => Division::rows(&step.weights),
            Step::Quantise { x, split: Split::Rows, .. } => Division::rows(x),
            Step::Quantise { x, .. } => Division::elements(x),
            _ => return None,
        })
    }

    /// How quantising these rows is best divided when it follows this step.
    pub(super) fn split_of(&self, rows: &RowsArg) -> Split {
        match self {
            Step::RmsNorm { out, .. } | Step::AddRmsNorm { out, .. } if out == rows => Split::Rows,
            _ => Split::Elements,
        }
    }

    /// The rows that it reads and writes, but for weights and for states, which nothing divided as here reads; `None` where
    /// that is not told.
    pub(super) fn touched(&self) -> Option<Vec<Touched>> {
        let list = |read: &[&RowsArg], written: &[&RowsArg]| {
            let of =
                |args: &[&RowsArg], writes| args.iter().map(move |arg| (**arg, writes)).collect::<Vec<_>>();
            [of(read, false), of(written, true)].concat()
        };
        Some(match self {
            Step::Quantise { x, at, .. } => list(&[x], &[&Input::blocks(x, *at)]),
            Step::Products(products) => {
                let rows = |p: &Product| match p.x {
                    Input::Exact(rows) => rows,
                    Input::Quantised { at, rows } => Input::blocks(&rows, at),
                };
                products.iter().flat_map(|p| [(rows(p), false), (p.out, true)]).collect()
            }
            Step::Unary { x, out, .. } | Step::RmsNorm { x, out, .. } => list(&[x], &[out]),
            Step::Binary { a, b, out, .. } => list(&[a, b], &[out]),
            Step::BinaryRow { a, out, .. } => list(&[a], &[out]),
            Step::AddRmsNorm { a, b, sum, out, .. } => list(&[a, b], &[sum, out]),
            Step::Angles { pos, cos, sin, .. } => list(&[pos], &[cos, sin]),
            Step::Rope { x, cos, sin, out, .. } => list(&[x, cos, sin], &[out]),
            Step::KvWrite(step) => list(&[&step.k, &step.v, &step.pos, &step.pages], &[]),
            Step::Route(step) => list(&[&step.logits], &[&step.weights, &step.experts]),
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
        match self {
            Step::Quantise { x, at, split } => quantise(ctx, worker, x, *at, *split),
            Step::Products(products) => multiply(ctx, worker, products),
            Step::Gated(step) => step.run(ctx, worker),
            Step::Gather { table, ids, out } => gather(ctx, worker, table, ids, out),
            Step::Unary { op, x, out } => {
                let (x, out) = (ctx.src(x), ctx.rows_mut(out));
                over_elements(out.rows(), out.dim(), worker, |rows, cols| {
                    // SAFETY: this part is this worker's own.
                    let part = unsafe { out.alias() }.part(rows.clone()).columns(cols.clone());
                    vector::unary(ctx.isa, *op, columns(x, &rows, &cols), part);
                });
            }
            Step::Binary { op, a, b, out } => binary(ctx, worker, *op, ctx.src(a), ctx.src(b), out),
            Step::BinaryRow { op, a, row, out } => {
                binary(ctx, worker, *op, ctx.src(a), Src::Row(ctx.weights[*row].elements()), out);
            }
            Step::RmsNorm { x, weight, width, eps, out } => {
                let (x, out) = (ctx.rows(x), ctx.rows_mut(out));
                let weight = ctx.weights[*weight].elements();
                let part = |rows: Range<usize>, columns: Range<usize>| {
                    // SAFETY: this part is this worker's own.
                    let part = unsafe { out.alias() }.part(rows.clone()).columns(columns.clone());
                    vector::rms_norm(
                        ctx.isa,
                        x.part(rows).columns(columns).into(),
                        weight,
                        *width,
                        *eps,
                        part,
                    );
                };
                match out.dim() / width {
                    1 => over_rows(out.rows(), worker, |rows| part(rows, 0..*width)),
                    heads => over_heads(out.rows(), heads, worker, |rows, heads| {
                        part(rows, heads.start * width..heads.end * width);
                    }),
                }
            }
            Step::AddRmsNorm { a, b, weight, eps, sum, out } => {
                let (a, b, sum, out) = (ctx.src(a), ctx.src(b), ctx.rows_mut(sum), ctx.rows_mut(out));
                let weight = ctx.weights[*weight].elements();
                let all = 0..out.dim();
                over_rows(out.rows(), worker, |rows| {
                    // SAFETY: these parts are this worker's own.
                    let parts = unsafe { [sum.alias(), out.alias()].map(|r| r.part(rows.clone())) };
                    let [sum, out] = parts;
                    let (a, b) = (columns(a, &rows, &all), columns(b, &rows, &all));
                    vector::add_rms_norm(ctx.isa, a, b, weight, *eps, sum, out);
                });
            }
            Step::Angles { pos, inv_freq, magnitude, cos, sin } => {
                let (pos, inv_freq) = (ctx.words(pos), ctx.weights[*inv_freq].elements());
                let (cos, sin) = (ctx.rows_mut(cos), ctx.rows_mut(sin));
                over_rows(pos.len(), worker, |rows| {
                    for row in rows {
                        // SAFETY: this row of both tables is this worker's own.
                        let mut parts = unsafe { [cos.alias(), sin.alias()] };
                        let [cos, sin] = parts.each_mut().map(|table| table.row(row));
                        vector::rope_angles(&pos[row..=row], inv_freq, *magnitude, cos, sin);
                    }
                });
            }
            Step::Rope { x, head_dim, cos, sin, out } => {
                let (x, out) = (ctx.rows(x), ctx.rows_mut(out));
                let (cos, sin) = (ctx.rows(cos), ctx.rows(sin));
                over_heads(out.rows(), out.dim() / head_dim, worker, |rows, heads| {
                    let columns = heads.start * head_dim..heads.end * head_dim;
                    let (cos, sin) = (cos.part(rows.clone()), sin.part(rows.clone()));
                    // SAFETY: this part is this worker's own.
                    let part = unsafe { out.alias() }.part(rows.clone()).columns(columns.clone());
                    vector::rope(ctx.isa, x.part(rows).columns(columns).into(), *head_dim, cos, sin, part);
                });
            }
            Step::Route(step) => step.run(ctx, worker),
            Step::Experts(step) => step.run(ctx, worker),
            Step::ExpertSum(step) => step.run(ctx, worker),
            Step::ShortConv(step) => step.run(ctx, worker),
            Step::DeltaRule(step) => step.run(ctx, worker),
            Step::KvWrite(step) => step.run(ctx, worker),
            Step::Attention(step) => step.run(ctx, worker),
            Step::Sample(step) => step.run(ctx, worker),
            Step::Feed(step) => step.run(ctx, worker),
        }
    }
}

fn quantise(ctx: &Ctx, worker: &Worker<'_>, x: &RowsArg, at: usize, split: Split) {
    let per_row = x.width / BLOCK;
    let rows = ctx.rows(x);
    let part = |part: Range<usize>, cols: Range<usize>| {
        for row in part {
            let first = row * per_row + cols.start / BLOCK;
            let count = cols.len() / BLOCK;
            // SAFETY: these blocks are this worker's own.
            let out = unsafe { ctx.blocks_mut(at, first, count) };
            quantise_row(ctx.isa, &rows.row(row)[cols.clone()], out);
        }
    };
    match split {
        Split::Rows => over_rows(rows.rows(), worker, |rows| part(rows, 0..x.width)),
        _ => over_elements(rows.rows(), x.width, worker, part),
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

fn binary(ctx: &Ctx, worker: &Worker<'_>, op: vector::Binary, a: Src<'_>, b: Src<'_>, out: &RowsArg) {
    let out = ctx.rows_mut(out);
    over_elements(out.rows(), out.dim(), worker, |rows, cols| {
        // SAFETY: this part is this worker's own.
        let part = unsafe { out.alias() }.part(rows.clone()).columns(cols.clone());
        vector::binary(ctx.isa, op, columns(a, &rows, &cols), columns(b, &rows, &cols), part);
    });
}

fn gather(ctx: &Ctx, worker: &Worker<'_>, table: &Table, ids: &RowsArg, out: &RowsArg) {
    let (ids, out) = (ctx.words(ids), ctx.rows_mut(out));
    over_rows(out.rows(), worker, |rows| {
        for row in rows {
            // SAFETY: this row is this worker's own.
            let mut part = unsafe { out.alias() }.part(row..row + 1);
            let id = ids[row] as usize;
            let to = part.row(0);
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
    });
}
