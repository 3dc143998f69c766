//! One request in progress.

use crate::cache::Holding;
use crate::request::{Finish, RequestId};
use crate::sampling::Sampler;
use crate::session::SessionId;
use crate::step::Segment;

pub(crate) enum Work {
    Generate {
        sampler: Box<Sampler>,
        /// Length of the whole sequence at which to stop.
        stop_at: usize,
        stop: Vec<u32>,
        /// The device draws its tokens. Its own options decide, never what else runs.
        on_device: bool,
    },
    Score {
        /// The next position to report.
        next: usize,
    },
}

pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// Prompt, then what was generated, as far as the host knows it.
    pub(crate) tokens: Vec<u32>,
    /// Tokens behind those, drawn by steps in flight.
    pub(crate) unread: usize,
    pub(crate) prompt: usize,
    /// Positions whose rows are computed, or in steps in flight.
    pub(crate) sent: usize,
    /// Times it was started over: what steps of an earlier life give is of no use.
    pub(crate) life: u32,
    /// Most tokens it may have: the context.
    pub(crate) room: usize,
    pub(crate) holding: Holding,
    pub(crate) work: Work,
    /// What has its blocks and slots before and after.
    pub(crate) session: Option<SessionId>,
    /// The model carries states from row to row.
    pub(crate) recurrent: bool,
    /// The state after the last row lies in the snapshot's slot alone.
    pub(crate) in_snapshot: bool,
    /// Position of the snapshot there is.
    pub(crate) snapshot: Option<usize>,
}

impl Sequence {
    /// Tokens there are, read or not.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len() + self.unread
    }

    /// Tokens to be computed that no step has yet. What ends the output when it is read is not among them.
    pub(crate) fn pending(&self) -> usize {
        match self.work {
            Work::Generate { stop_at, .. } if self.unread > 0 && self.len() >= stop_at.min(self.room) => 0,
            _ => self.len() - self.sent,
        }
    }

    /// True when the next row is a generated token: the decode class.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending() == 1 && self.len() > self.prompt
    }

    /// Whether a step in flight gives the logits that the host is to draw the next token from.
    pub(crate) fn awaits_host(&self) -> bool {
        matches!(self.work, Work::Generate { on_device: false, .. }) && self.sent == self.len()
    }

    /// Whether logits of the row at `position` are wanted.
    pub(crate) fn wants(&self, position: usize) -> bool {
        match self.work {
            Work::Generate { .. } => position + 1 == self.len(),
            Work::Score { next } => position >= next,
        }
    }

    /// The next `len` rows, of which logits of the last `outs` are wanted, for the sequence at `index` among those that run.
    pub(crate) fn segment(&self, index: usize, len: usize, outs: usize) -> Segment {
        let draws = outs > 0 && matches!(self.work, Work::Generate { on_device: true, .. });
        Segment { sequence: index, id: self.id, life: self.life, start: self.sent, len, outs, draws }
    }

    /// Positions that need not be computed when their keys, values and states are there: at least the last row is, and every one
    /// whose logits are wanted.
    pub(crate) fn reusable(&self) -> usize {
        let last = self.tokens.len() - 1;
        match self.work {
            Work::Generate { .. } => last,
            Work::Score { next } => last.min(next),
        }
    }

    /// Whether it needs a slot for a snapshot.
    pub(crate) fn takes_snapshot(&self) -> bool {
        self.session.is_some() && self.recurrent
    }

    /// The position whose state these rows give to the snapshot: that before the prompt's last row, which is where another
    /// answer to the same prompt starts, and whatever follows it.
    pub(crate) fn snapshot_of(&self, segment: &Segment) -> Option<usize> {
        let at = self.prompt - 1;
        let inside = segment.start < at && at <= segment.start + segment.len;
        (inside && self.takes_snapshot()).then_some(at)
    }

    /// The slot with the state that the next row starts from.
    pub(crate) fn state_slot(&self) -> u32 {
        let slot = if self.in_snapshot { self.holding.snapshot } else { self.holding.slot };
        slot.unwrap_or(0)
    }

    /// Notes that a step with these rows is in flight.
    pub(crate) fn send(&mut self, segment: &Segment) {
        self.sent = segment.start + segment.len;
        let snapshot = self.snapshot_of(segment);
        // A row stores to one slot.
        self.in_snapshot = snapshot == Some(self.sent);
        self.snapshot = snapshot.or(self.snapshot);
        self.unread += usize::from(segment.draws);
    }

    /// Takes a generated token; the reason, when it was the last.
    pub(crate) fn push(&mut self, token: u32) -> Option<Finish> {
        self.tokens.push(token);
        let Work::Generate { stop_at, stop, .. } = &self.work else { return None };
        if stop.contains(&token) {
            Some(Finish::Stop)
        } else if self.tokens.len() >= *stop_at {
            Some(Finish::MaxTokens)
        } else if self.tokens.len() >= self.room {
            Some(Finish::ContextFull)
        } else {
            None
        }
    }

    /// Gives up what was computed, to be computed again. Tokens that nobody has read are drawn again, the same.
    pub(crate) fn forget(&mut self) {
        self.sent = 0;
        self.unread = 0;
        self.in_snapshot = false;
        self.snapshot = None;
        self.life += 1;
    }
}
