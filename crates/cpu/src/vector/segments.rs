//! The rows of several sequences in a step, and the slots of their recurrent states.

use tensor::ops::NO_SNAP;

/// Rows of sequences, one sequence after another, each of which goes on from a slot of a recurrent state.
#[derive(Debug, Clone, Copy)]
pub struct Segments<'a> {
    /// `[sequences]`: rows of each sequence, in order. Rows after the last are padding; their output is zero.
    pub extents: &'a [u32],
    /// `[sequences]`: the slot that holds the state before the sequence's first row.
    pub slots: &'a [u32],
    /// `[rows]`: position of each row. A sequence whose first row has position 0 starts from zeros.
    pub pos: &'a [u32],
    /// `[rows]`: the slot that receives the state after this row, or [`NO_SNAP`].
    pub snap: &'a [u32],
}

impl Segments<'_> {
    /// How many of `rows` are no padding.
    ///
    /// # Panics
    /// When there are fewer rows, or the lists are too short.
    pub(super) fn used(&self, rows: usize) -> usize {
        let used = self.extents.iter().map(|&n| n as usize).sum();
        assert!(
            used <= rows && self.pos.len() >= used && self.snap.len() >= used,
            "a position and slot for each row"
        );
        assert_eq!(self.slots.len(), self.extents.len(), "a slot for each sequence");
        used
    }

    /// The slot that receives the state after a row.
    pub(super) fn stored(&self, row: usize) -> Option<u32> {
        Some(self.snap[row]).filter(|slot| *slot != NO_SNAP)
    }
}
