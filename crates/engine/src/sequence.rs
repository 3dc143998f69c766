//! One request in progress.

use crate::cache::Holding;
use crate::request::{Finish, RequestId};
use crate::sampling::Sampler;

pub(crate) enum Work {
    Generate {
        sampler: Box<Sampler>,
        /// Length of the whole sequence at which to stop.
        stop_at: usize,
        stop: Vec<u32>,
    },
    Score {
        /// The next position to report.
        next: usize,
    },
}

pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// Prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt: usize,
    /// Positions whose keys, values and states are in the cache.
    pub(crate) done: usize,
    pub(crate) holding: Holding,
    pub(crate) work: Work,
    /// To be dropped as soon as no step uses it.
    pub(crate) cancelled: bool,
}

impl Sequence {
    /// Tokens not yet computed.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.done
    }

    /// True when the next row is a generated token: the decode class.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending() == 1 && self.tokens.len() > self.prompt
    }

    /// Whether logits of the row at `position` are wanted.
    pub(crate) fn wants(&self, position: usize) -> bool {
        match self.work {
            Work::Generate { .. } => position + 1 == self.tokens.len(),
            Work::Score { next } => position >= next,
        }
    }

    /// Takes a generated token; the reason, when it was the last.
    pub(crate) fn push(&mut self, token: u32, context: usize) -> Option<Finish> {
        self.tokens.push(token);
        let Work::Generate { stop_at, stop, .. } = &self.work else { return None };
        if stop.contains(&token) {
            Some(Finish::Stop)
        } else if self.tokens.len() >= *stop_at {
            Some(Finish::MaxTokens)
        } else if self.tokens.len() >= context {
            Some(Finish::ContextFull)
        } else {
            None
        }
    }

    /// Gives up what was computed, to be computed again.
    pub(crate) fn forget(&mut self) {
        self.done = 0;
    }
}
