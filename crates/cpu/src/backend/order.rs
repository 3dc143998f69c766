//! Where workers must meet between the steps of a plan.
//!
//! A barrier costs most of a microsecond, which is more than the small steps of a token take. Steps that follow each other do
//! without where each worker goes on with what it made itself, or where they have nothing to do with each other.

use std::ops::Range;

use graph::{Graph, Node};
use tensor::Op;

use super::division::Division;
use super::operand::{Place, RowsArg};
use super::steps::Step;

/// What a step reads and writes.
#[derive(Debug)]
pub(super) struct Touched {
    pub(super) reads: Vec<RowsArg>,
    pub(super) writes: Vec<RowsArg>,
    /// The KV cache that it stores to.
    pub(super) cache: Option<usize>,
}

impl Touched {
    pub(super) fn new(reads: &[&RowsArg], writes: &[&RowsArg]) -> Touched {
        let own = |args: &[&RowsArg]| args.iter().map(|arg| **arg).collect();
        Touched { reads: own(reads), writes: own(writes), cache: None }
    }
}

/// Nodes that follow each other and are divided by heads, for [`graph::memory::plan`]: without it the queries' memory would be
/// that of the rotated keys, and workers would have to meet between.
pub(super) fn runs(graph: &Graph) -> Vec<Range<usize>> {
    let by_heads = |node: &Node| match node.op {
        Op::Rope { .. } | Op::KvWrite => true,
        Op::RmsNorm { .. } => graph.value(node.inputs[0]).layout.shape.rank() > 2,
        _ => false,
    };
    let mut at = 0;
    let runs = graph.nodes.chunk_by(|a, b| by_heads(a) && by_heads(b)).map(|run| {
        at += run.len();
        at - run.len()..at
    });
    runs.filter(|run| run.len() > 1).collect()
}

/// For each step whether a barrier must lie before it, the workers having met before the first.
pub(super) fn waits<'a>(steps: impl Iterator<Item = &'a Step>) -> Vec<bool> {
    // Those since the last barrier.
    let mut since: Vec<(Option<Division>, Option<Touched>)> = vec![];
    let mut waits = vec![];
    for step in steps {
        let step = (step.division(), step.touched());
        let goes_on =
            since.is_empty() || step.0.is_some() && since.iter().all(|earlier| go_together(earlier, &step));
        if !goes_on {
            since.clear();
        }
        waits.push(!goes_on);
        since.push(step);
    }
    waits
}

/// Whether no worker touches what another writes: each pair of operands lies apart, or is divided alike.
fn go_together(a: &(Option<Division>, Option<Touched>), b: &(Option<Division>, Option<Touched>)) -> bool {
    let (Some(x), Some(y)) = (&a.1, &b.1) else { return false };
    let alike = a.0.is_some() && a.0 == b.0;
    let clear = |written: &RowsArg, other: &RowsArg| {
        let same = |arg: &RowsArg| (arg.at, arg.width, arg.stride);
        apart(written, other) || alike && same(written) == same(other)
    };
    let of_first = x.writes.iter().all(|w| y.reads.iter().chain(&y.writes).all(|other| clear(w, other)));
    let of_second = y.writes.iter().all(|w| x.reads.iter().all(|other| clear(w, other)));
    of_first && of_second && (x.cache.is_none() || x.cache != y.cache)
}

/// Whether two operands share no word.
fn apart(x: &RowsArg, y: &RowsArg) -> bool {
    let words = |arg: &RowsArg| (arg.rows.max(1) - 1) * arg.stride + arg.width;
    let (x_at, y_at) = match (x.at, y.at) {
        (Place::Arena(x), Place::Arena(y)) | (Place::Output(x), Place::Output(y)) => (x, y),
        // Nobody writes inputs.
        _ => return true,
    };
    x_at + words(x) <= y_at || y_at + words(y) <= x_at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::steps::{Input, Product, Table};
    use crate::vector::Binary::Add;
    use crate::vector::Unary::Scale;

    const BOUND: Option<(usize, usize)> = Some((0, 1));

    fn rows(at: usize, width: usize, stride: usize) -> RowsArg {
        RowsArg { at: Place::Arena(at), rows: 4, width, stride, bound: BOUND }
    }

    fn rope(x: RowsArg, out: RowsArg) -> Step {
        let [cos, sin] = [1000, 1100].map(|at| rows(at, 8, 8));
        Step::Rope { x, head_dim: 16, cos, sin, out }
    }

    fn norm(x: RowsArg, width: usize, out: RowsArg) -> Step {
        Step::RmsNorm { x, weight: 0, width, eps: 1e-6, out }
    }

    fn pos_of(at: usize) -> RowsArg {
        RowsArg { at: Place::Input(at), ..rows(0, 1, 1) }
    }

    fn meet(steps: &[Step]) -> Vec<bool> {
        waits(steps.iter())
    }

    #[test]
    fn chains_of_the_same_rows_and_steps_apart_go_on() {
        let (q, k) = (rows(0, 64, 64), rows(300, 32, 32));
        let (q2, k2) = (rows(500, 64, 64), rows(800, 32, 32));
        let all = meet(&[norm(q, 16, q2), norm(k, 16, k2), rope(q2, q), rope(k2, k2)]);
        assert_eq!(all, [false; 4]);
    }

    #[test]
    fn what_another_worker_made_or_still_reads_is_waited_for() {
        let (q, k, out) = (rows(0, 64, 64), rows(300, 32, 32), rows(500, 64, 64));
        let last = |steps: &[Step]| *meet(steps).last().unwrap();
        // Divided otherwise: whole rows, then heads; other heads; heads of other rows.
        assert!(last(&[norm(q, 64, out), rope(out, q)]));
        assert!(last(&[rope(q, out), Step::Unary { op: Scale(2.0), x: out, out: q }]));
        assert!(last(&[norm(q, 32, out), rope(out, q)]));
        assert!(last(&[rope(q, out), rope(out, RowsArg { rows: 3, ..q })]));
        assert!(last(&[rope(q, out), rope(out, RowsArg { bound: None, ..q })]));
        // Rows of another stride over memory that is read or written: before a step in between too.
        let across = rows(20, 32, 40);
        assert!(last(&[rope(q, out), rope(k, across)]));
        assert!(last(&[rope(q, out), rope(k, RowsArg { at: Place::Arena(510), ..across })]));
        assert_eq!(
            meet(&[rope(q, out), rope(k, k), rope(k, across), rope(q, out)]),
            [false, false, true, true]
        );
        // What each kind of step reads and writes.
        let [a, b] = [rows(2000, 64, 64), rows(2300, 64, 64)];
        let scale = |x, out| Step::Unary { op: Scale(2.0), x, out };
        let both = |a, b| Step::Binary { op: Add, a, b, out };
        let add_norm = |sum, out| Step::AddRmsNorm { a, b, weight: 0, eps: 1e-6, sum, out };
        let codes = |x, at| Step::Quantise { x, at, by_rows: true };
        let product = |x, out| Step::Products(vec![Product { x, weight: 0, bias: None, out }]);
        let blocks = |at| Input::Quantised { at, rows: a };
        for (first, second) in [
            (scale(q, a), rope(a, out)),
            (norm(q, 64, a), both(b, a)),
            (norm(q, 64, a), both(a, b)),
            (both(a, b), norm(out, 64, q)),
            (both(a, b), norm(q, 64, a)),
            (both(a, b), norm(q, 64, b)),
            (add_norm(q, out), scale(q, a)),
            (add_norm(q, out), scale(out, a)),
            (add_norm(q, out), scale(k, a)),
            (add_norm(q, out), scale(k, b)),
            (codes(a, 0), scale(b, q)),
            (product(blocks(0), out), codes(b, 0)),
            (product(blocks(0), out), norm(out, 64, b)),
            (product(Input::Exact(a), out), norm(b, 64, a)),
        ] {
            let pair = [first, second];
            assert!(last(&pair), "{:?}", pair.map(|step| step.touched()));
        }
        // A step that does not tell.
        let table = Table::Rows(a);
        assert_eq!(meet(&[Step::Gather { table, ids: pos_of(0), out: b }, rope(q, out)]), [false, true]);
        // The tables of angles, which are made by rows.
        let ([cos, sin], pos) = ([1000, 1100].map(|at| rows(at, 8, 8)), pos_of(0));
        assert!(last(&[Step::Angles { pos, inv_freq: 0, magnitude: 1.0, cos, sin }, rope(q, out)]));
    }
}
