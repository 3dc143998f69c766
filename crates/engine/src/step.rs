//! The arrays of one ragged step.

use graph::backend::StepInputs;
use tensor::ops::NO_SNAP;

use crate::sequence::Sequence;

/// The rows one sequence contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Index among the running sequences.
    pub(crate) sequence: usize,
    /// First position.
    pub(crate) start: usize,
    /// Rows.
    pub(crate) len: usize,
    /// Rows at the end whose logits are wanted.
    pub(crate) outs: usize,
}

/// For each segment, the first position among `rows` of the step. `None` when there are no rows, or one that no segment
/// has: then it is not known who met them.
pub(crate) fn positions_of(segments: &[Segment], rows: &[u32]) -> Option<Vec<Option<usize>>> {
    let total = segments.iter().map(|s| s.len).sum::<usize>();
    if rows.is_empty() || rows.iter().any(|row| *row as usize >= total) {
        return None;
    }
    let mut first = 0;
    let position = |s: &Segment| {
        let own = first..first + s.len;
        first = own.end;
        let row = rows.iter().map(|row| *row as usize).filter(|row| own.contains(row)).min();
        row.map(|row| s.start + row - own.start)
    };
    Some(segments.iter().map(position).collect())
}

/// Host copies of the step arrays, reused from step to step.
#[derive(Default)]
pub(crate) struct StepArrays {
    ids: Vec<u32>,
    pos: Vec<u32>,
    until: Vec<u32>,
    extents: Vec<u32>,
    pages: Vec<u32>,
    slots: Vec<u32>,
    snap: Vec<u32>,
    out_rows: Vec<u32>,
}

impl StepArrays {
    /// Fills the arrays for these segments. `width` is the length of a row of the page table.
    pub(crate) fn fill(&mut self, segments: &[Segment], running: &[Sequence], width: usize) {
        let arrays = [
            &mut self.ids,
            &mut self.pos,
            &mut self.until,
            &mut self.extents,
            &mut self.pages,
            &mut self.slots,
            &mut self.snap,
            &mut self.out_rows,
        ];
        arrays.into_iter().for_each(Vec::clear);
        for segment in segments {
            let s = &running[segment.sequence];
            let end = segment.start + segment.len;
            let first_row = self.ids.len();
            self.ids.extend(&s.tokens[segment.start..end]);
            self.pos.extend(segment.start as u32..end as u32);
            self.until.extend(segment.start as u32 + 1..end as u32 + 1);
            self.extents.push(segment.len as u32);
            self.pages.extend(&s.holding.pages);
            // Entries past the sequence's blocks are never followed: positions stay below the length.
            self.pages.resize(self.extents.len() * width, 0);
            let slot = s.holding.slot.unwrap_or(0);
            self.slots.push(slot);
            self.snap.resize(self.ids.len(), NO_SNAP);
            if let Some(last) = self.snap.last_mut() {
                *last = slot;
            }
            self.out_rows.extend((first_row + segment.len - segment.outs) as u32..self.ids.len() as u32);
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Calls `with` with the inputs and scalars among `declared`.
    pub(crate) fn with_inputs<R>(&self, declared: &[String], with: impl FnOnce(&StepInputs) -> R) -> R {
        let mut inputs: Vec<(&str, &[u32])> = vec![
            ("ids", &self.ids),
            ("pos", &self.pos),
            ("until", &self.until),
            ("extents", &self.extents),
            ("pages", &self.pages),
            ("slots", &self.slots),
            ("snap", &self.snap),
            ("out_rows", &self.out_rows),
        ];
        inputs.retain(|(name, _)| declared.iter().any(|d| d == name));
        let mut scalars = vec![
            ("rows", self.ids.len() as u32),
            ("seqs", self.extents.len() as u32),
            ("outs", self.out_rows.len() as u32),
        ];
        scalars.retain(|(name, _)| declared.iter().any(|d| d == name));
        with(&StepInputs { inputs: &inputs, floats: &[], scalars: &scalars })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rows_belong_to_the_segments_that_hold_them() {
        let segment = |start, len| Segment { sequence: 0, start, len, outs: 1 };
        let step = [segment(30, 1), segment(0, 4), segment(16, 8), segment(7, 1)];
        let of = |rows: &[u32]| positions_of(&step, rows);
        assert_eq!(of(&[0]), Some(vec![Some(30), None, None, None]));
        assert_eq!(of(&[3, 4]), Some(vec![None, Some(2), None, None]));
        assert_eq!(of(&[12, 6, 13]), Some(vec![None, None, Some(17), Some(7)]));
        assert_eq!(of(&[1, 13]), Some(vec![None, Some(0), None, Some(7)]));
        // Nobody's, or not known whose.
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2, 14]), None);
    }
}
