//! Where workers must meet between the steps of a plan.
//!
//! A barrier costs most of a microsecond, which is more than the small steps of a token take. Steps that follow each other do
//! without where each worker goes on with what it made itself, or where they have nothing to do with each other.

use super::operand::{Place, RowsArg};
use super::steps::{Split, Step};

/// How workers divide rows that are as many in all operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    split: Split,
    rows: usize,
    bound: Option<(usize, usize)>,
    /// What else decides where the cuts lie.
    pieces: usize,
}

impl Division {
    /// Of whole rows like those of an operand.
    pub(super) fn rows(of: &RowsArg) -> Division {
        Division { split: Split::Rows, rows: of.rows, bound: of.bound, pieces: 1 }
    }

    /// Of rows and columns like those of an operand.
    pub(super) fn elements(of: &RowsArg) -> Division {
        Division { split: Split::Elements, pieces: of.width, ..Division::rows(of) }
    }

    /// Of rows and heads.
    pub(super) fn heads(of: &RowsArg, heads: usize) -> Division {
        Division { split: Split::Heads, pieces: heads, ..Division::rows(of) }
    }
}

/// Rows that a step touches: `(rows, whether it writes them)`.
pub(super) type Touched = (RowsArg, bool);

/// For each step whether a barrier must lie before it, the workers having met before the first.
pub(super) fn waits<'a>(steps: impl Iterator<Item = &'a Step>) -> Vec<bool> {
    // Since the last barrier.
    let mut since: Vec<(&Step, Option<Vec<Touched>>)> = vec![];
    let mut waits = vec![];
    for step in steps {
        let touched = step.touched();
        let goes_on = since.iter().all(|(earlier, of_earlier)| match (of_earlier, &touched) {
            (Some(of_earlier), Some(touched)) => {
                step.division().is_some() && go_together((earlier, of_earlier), (step, touched))
            }
            _ => false,
        });
        if !goes_on {
            since.clear();
        }
        waits.push(!goes_on);
        since.push((step, touched));
    }
    waits
}

/// Whether no worker touches what another writes: each pair of operands lies apart, or is divided alike.
fn go_together(a: (&Step, &[Touched]), b: (&Step, &[Touched])) -> bool {
    let alike = a.0.division().is_some() && a.0.division() == b.0.division();
    a.1.iter().all(|(x, writes)| {
        b.1.iter().all(|(y, also)| {
            !(*writes || *also)
                || apart(x, y)
                || alike && (x.at, x.width, x.stride) == (y.at, y.width, y.stride)
        })
    })
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
        assert!(last(&[rope(q, out), Step::Unary { op: crate::vector::Unary::Silu, x: out, out: q }]));
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
        // The tables of angles, which are made by rows.
        let [cos, sin, pos] = [rows(1000, 8, 8), rows(1100, 8, 8), rows(0, 1, 1)];
        let pos = RowsArg { at: Place::Input(0), ..pos };
        assert!(last(&[Step::Angles { pos, inv_freq: 0, magnitude: 1.0, cos, sin }, rope(q, out)]));
    }
}
