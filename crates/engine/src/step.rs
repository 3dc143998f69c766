//! The arrays of one ragged step.

use graph::backend::StepInputs;
use tensor::ops::{NO_SNAP, NOT_A_TOKEN};
use tensor::sampling::Policy;

use crate::request::RequestId;
use crate::sequence::{Sequence, Work};

/// The rows one sequence contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Index among the running sequences when the step was planned.
    pub(crate) sequence: usize,
    /// The request and, as it may have been started over since, in which of its lives.
    pub(crate) id: RequestId,
    pub(crate) life: u32,
    /// First position.
    pub(crate) start: usize,
    /// Rows.
    pub(crate) len: usize,
    /// Rows at the end whose logits are wanted.
    pub(crate) outs: usize,
    /// The device draws a token from the last row.
    pub(crate) draws: bool,
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
    into: Vec<u32>,
    uniform: Vec<u32>,
    sharpness: Vec<f32>,
    top_k: Vec<u32>,
    top_p: Vec<u32>,
    min_p: Vec<u32>,
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
            &mut self.into,
            &mut self.uniform,
            &mut self.top_k,
            &mut self.top_p,
            &mut self.min_p,
        ];
        arrays.into_iter().for_each(Vec::clear);
        self.sharpness.clear();
        for segment in segments {
            let s = &running[segment.sequence];
            let end = segment.start + segment.len;
            let first_row = self.ids.len();
            let slot = s.holding.slot.unwrap_or(0);
            let read = end.min(s.tokens.len());
            self.ids.extend(&s.tokens[segment.start.min(read)..read]);
            // A token that nobody has read is the one the sequence's slot holds.
            self.ids.resize(first_row + segment.len, NOT_A_TOKEN | slot);
            self.pos.extend(segment.start as u32..end as u32);
            self.until.extend(segment.start as u32 + 1..end as u32 + 1);
            self.extents.push(segment.len as u32);
            self.pages.extend(&s.holding.pages);
            // Entries past the sequence's blocks are never followed: positions stay below the length.
            self.pages.resize(self.extents.len() * width, 0);
            self.slots.push(s.state_slot());
            self.snap.resize(self.ids.len(), NO_SNAP);
            if let Some(last) = self.snap.last_mut() {
                *last = slot;
            }
            if let (Some(at), Some(slot)) = (s.snapshot_of(segment), s.holding.snapshot) {
                self.snap[first_row + at - segment.start - 1] = slot;
            }
            self.out_rows.extend((first_row + segment.len - segment.outs) as u32..self.ids.len() as u32);
            let policy = match &s.work {
                Work::Generate { sampler, .. } if segment.draws => Some(sampler.policy(end as u64)),
                _ => None,
            };
            for _ in 0..segment.outs {
                self.draw(policy.map(|policy| (slot, policy)));
            }
        }
    }

    /// A row of logits from which the device draws a token into a slot, or none.
    fn draw(&mut self, draw: Option<(u32, Policy)>) {
        let (slot, policy) = draw.unwrap_or((NO_SNAP, Policy::default()));
        self.into.push(slot);
        self.uniform.push(policy.uniform);
        self.sharpness.push(policy.sharpness);
        self.top_k.push(policy.top_k);
        self.top_p.push(policy.top_p);
        self.min_p.push(policy.min_p);
    }

    pub(crate) fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Calls `with` with the inputs and scalars among `declared`, rows that another device gave, and the outputs to be read.
    pub(crate) fn with_inputs<R>(
        &self,
        declared: &[String],
        given: Option<(&str, &[f32])>,
        outputs: &[&str],
        with: impl FnOnce(&StepInputs) -> R,
    ) -> R {
        let is_declared = |name: &str| declared.iter().any(|d| d == name);
        let mut inputs: Vec<(&str, &[u32])> = vec![
            (models::IDS, &self.ids),
            ("pos", &self.pos),
            ("until", &self.until),
            ("extents", &self.extents),
            ("pages", &self.pages),
            ("slots", &self.slots),
            ("snap", &self.snap),
            ("out_rows", &self.out_rows),
            ("into", &self.into),
            ("uniform", &self.uniform),
            ("top_k", &self.top_k),
            ("top_p", &self.top_p),
            ("min_p", &self.min_p),
        ];
        inputs.retain(|(name, _)| is_declared(name));
        let mut floats: Vec<(&str, &[f32])> = vec![("sharpness", &self.sharpness)];
        floats.retain(|(name, _)| is_declared(name));
        floats.extend(given);
        let mut scalars = vec![
            ("rows", self.ids.len() as u32),
            ("seqs", self.extents.len() as u32),
            ("outs", self.out_rows.len() as u32),
        ];
        scalars.retain(|(name, _)| is_declared(name));
        with(&StepInputs { inputs: &inputs, floats: &floats, scalars: &scalars, outputs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rows_belong_to_the_segments_that_hold_them() {
        let segment = |start, len| {
            let id = RequestId(0);
            Segment { sequence: 0, id, life: 0, start, len, outs: 1, draws: false }
        };
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
