//! How workers divide the rows of a step.

use std::ops::Range;

use super::operand::RowsArg;
use super::steps::Ctx;
use crate::pool::Worker;

/// A division that is fixed by the rows and by the number of workers: of two steps with equal ones, each worker has the same
/// rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    rows: usize,
    bound: Option<(usize, usize)>,
    width: usize,
    cut: Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// By rows, or by so many pieces of each where there are fewer rows than workers.
    Pieces(usize),
    /// By columns, which are those that each worker made of a product, unless there is little to divide.
    Columns,
}

impl Division {
    fn new(of: &RowsArg, cut: Cut) -> Division {
        Division { rows: of.rows, bound: of.bound, width: of.width, cut }
    }

    /// By rows.
    pub(super) fn rows(of: &RowsArg) -> Division {
        Division::new(of, Cut::Pieces(1))
    }

    /// By rows, or by heads where there are fewer rows than workers.
    pub(super) fn heads(of: &RowsArg, heads: usize) -> Division {
        Division::new(of, Cut::Pieces(heads))
    }

    /// By columns.
    pub(super) fn columns(of: &RowsArg) -> Division {
        Division::new(of, Cut::Columns)
    }

    /// Whether each worker has whole rows, however many there are.
    pub(super) fn is_by_rows(&self) -> bool {
        self.cut == Cut::Pieces(1)
    }

    /// Runs `part` over the rows and columns that are this worker's own, if any.
    pub(super) fn over(&self, ctx: &Ctx, worker: &Worker<'_>, part: impl FnOnce(Range<usize>, Range<usize>)) {
        let (rows, columns) = self.own(ctx.real(self.rows, self.bound), worker);
        if !rows.is_empty() && !columns.is_empty() {
            part(rows, columns);
        }
    }

    fn own(&self, n: usize, worker: &Worker<'_>) -> (Range<usize>, Range<usize>) {
        const SMALL: usize = 2048;
        // Whole cache lines, and blocks of what is quantised.
        const ALIGN: usize = 64;
        let (width, workers) = (self.width, worker.count());
        match self.cut {
            Cut::Columns if n * width > SMALL && (n < workers || width >= 4 * ALIGN * workers) => {
                (0..n, worker.share(width, ALIGN))
            }
            Cut::Pieces(pieces) if pieces > 1 && n < workers => (0..n, worker.share(width, width / pieces)),
            _ => (worker.share(n, 1), 0..width),
        }
    }
}
