//! What a run found.

use std::collections::BTreeMap;
use std::fmt;

use tensor::DType;

/// One failed check.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `op/dtype/class` of the case.
    pub case: String,
    /// Which check, in which precision.
    pub check: String,
    /// What was found.
    pub problem: String,
}

/// All cases of an op and a type.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cell {
    /// Cases.
    pub cases: usize,
    /// Cases whose every check passed.
    pub passed: usize,
    /// Cases that the backend has no kernel for.
    pub unsupported: usize,
    /// The largest error, as a share of its bound.
    pub worst: f64,
}

/// The table op x type of one backend.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// The backend.
    pub device: String,
    /// By op, in the order of the cases, then by type.
    pub rows: Vec<(&'static str, BTreeMap<usize, Cell>)>,
    /// Every failed check.
    pub failures: Vec<Failure>,
    /// Cases without a kernel, and what the backend says of them.
    pub unsupported: Vec<(String, String)>,
}

impl Report {
    /// True when at least one case ran, all are supported, and none failed.
    pub fn passed(&self) -> bool {
        let cells = || self.rows.iter().flat_map(|(_, cells)| cells.values());
        cells().count() > 0 && cells().all(|c| c.passed == c.cases)
    }

    /// The cell of an op and a type.
    pub(crate) fn cell(&mut self, op: &'static str, dtype: DType) -> &mut Cell {
        let row = match self.rows.iter().position(|(name, _)| *name == op) {
            Some(row) => row,
            None => {
                self.rows.push((op, BTreeMap::new()));
                self.rows.len() - 1
            }
        };
        self.rows[row].1.entry(column(dtype)).or_default()
    }
}

fn column(dtype: DType) -> usize {
    DType::ALL.iter().position(|d| *d == dtype).unwrap_or(0)
}

/// Cells read `passed/cases`, then the worst error in per cent of its bound, or how many cases have no kernel.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut columns: Vec<usize> = self.rows.iter().flat_map(|(_, cells)| cells.keys()).copied().collect();
        columns.sort_unstable();
        columns.dedup();
        write!(f, "{:<15}", self.device)?;
        for c in &columns {
            write!(f, "{:>13}", DType::ALL[*c].name())?;
        }
        writeln!(f)?;
        for (op, cells) in &self.rows {
            write!(f, "{op:<15}")?;
            for c in &columns {
                let text = match cells.get(c) {
                    None => "".to_owned(),
                    Some(c) if c.unsupported > 0 => format!("{}/{} no {}", c.passed, c.cases, c.unsupported),
                    Some(c) if c.worst.is_finite() => {
                        format!("{}/{} {:.0}%", c.passed, c.cases, 100.0 * c.worst)
                    }
                    Some(c) => format!("{}/{} wrong", c.passed, c.cases),
                };
                write!(f, "{text:>13}")?;
            }
            writeln!(f)?;
        }
        // The first case of each op and type speaks for the others.
        let family =
            |case: &str| case.rsplit_once('/').map_or_else(String::new, |(family, _)| family.to_owned());
        for same in self.unsupported.chunk_by(|a, b| family(&a.0) == family(&b.0)) {
            let more = if same.len() > 1 { format!(" and {} more", same.len() - 1) } else { String::new() };
            writeln!(f, "NO KERNEL for {}{more}: {}", same[0].0, same[0].1)?;
        }
        for failure in &self.failures {
            writeln!(f, "FAILED {} ({}): {}", failure.case, failure.check, failure.problem)?;
        }
        Ok(())
    }
}
