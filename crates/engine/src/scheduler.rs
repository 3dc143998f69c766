//! Which rows go into the next step.
//!
//! Sequences run in the order they came. Each step takes the one pending row of every decoding sequence, then fills
//! the row budget with prompt chunks. When blocks run out, sessions that no request uses give theirs back, and then the
//! newest sequence, which waits; its tokens are computed again later, which gives the same bits. The oldest always
//! advances, so nothing starves.
//!
//! Blocks may change hands while a step in flight still writes them: a device runs steps in the order of submission, and
//! a row is written before it is read.

use std::collections::VecDeque;

use models::RECURRENT_CHUNK;

use crate::cache::Cache;
use crate::request::RequestId;
use crate::sequence::{Sequence, Work};
use crate::session::Sessions;
use crate::step::Segment;

/// Row and output budgets of one step.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) rows: usize,
    pub(crate) chunk: usize,
    pub(crate) outs: usize,
    pub(crate) recurrent: bool,
}

pub(crate) struct Scheduler {
    pub(crate) waiting: VecDeque<Sequence>,
    pub(crate) running: Vec<Sequence>,
    max_running: usize,
}

impl Scheduler {
    pub(crate) fn new(max_running: usize) -> Scheduler {
        Scheduler { waiting: VecDeque::new(), running: vec![], max_running }
    }

    /// Lets waiting sequences in while a place, the slots and the blocks for all their tokens are free or held by sessions that
    /// no request uses. Not one whose session is unsettled ([`Sessions::unsettled`]): what it would start from may yet turn out
    /// not to be. Gives those let in that have a session, with the positions they need not compute.
    pub(crate) fn admit(
        &mut self,
        cache: &mut Cache,
        sessions: &mut Sessions,
        in_flight: &[(RequestId, u32)],
    ) -> Vec<(RequestId, usize)> {
        let mut resumed = vec![];
        while self.running.len() < self.max_running {
            let unsettled = |s: &mut Sequence| s.session.is_some_and(|id| sessions.unsettled(id, in_flight));
            let Some(mut next) = self.waiting.pop_front_if(|s| !unsettled(s)) else { break };
            let reused = sessions.lend(&mut next, cache);
            let tokens = next.tokens.len();
            let fits = loop {
                let (two, holding) = (next.takes_snapshot(), &mut next.holding);
                if cache.grow(holding, tokens)
                    && cache.take_slot(&mut holding.slot)
                    && (!two || cache.take_slot(&mut holding.snapshot))
                {
                    break true;
                }
                let in_vain = cache.missing(&next.holding, tokens) > sessions.idle_blocks();
                if in_vain || !sessions.evict(cache) {
                    break false;
                }
            };
            if !fits {
                sessions.give_back(&mut next, cache);
                self.waiting.push_front(next);
                break;
            }
            resumed.extend(next.session.map(|_| (next.id, reused)));
            self.running.push(next);
        }
        resumed
    }

    /// The segments of the next step, with blocks for all their rows. The oldest sequence always keeps its place: the
    /// pool holds a whole context ([`crate::CacheSize::choose`]), so that one alone never runs out of blocks.
    pub(crate) fn plan(
        &mut self,
        cache: &mut Cache,
        sessions: &mut Sessions,
        budget: Budget,
    ) -> Vec<Segment> {
        loop {
            let segments = self.segments(budget);
            let grown =
                segments.iter().all(|s| cache.grow(&mut self.running[s.sequence].holding, s.start + s.len));
            if grown {
                return segments;
            }
            if sessions.evict(cache) {
                continue;
            }
            debug_assert!(self.running.len() > 1, "one sequence alone ran out of blocks");
            self.preempt_newest(cache);
        }
    }

    fn preempt_newest(&mut self, cache: &mut Cache) {
        if let Some(mut newest) = self.running.pop() {
            cache.free(&mut newest.holding);
            newest.forget();
            self.waiting.push_front(newest);
        }
    }

    /// Every sequence waits again, in the same order, with nothing computed and nothing held.
    pub(crate) fn start_over(&mut self) {
        for mut s in self.running.drain(..).rev() {
            s.holding = Default::default();
            s.forget();
            self.waiting.push_front(s);
        }
    }

    fn segments(&self, budget: Budget) -> Vec<Segment> {
        let mut rows = budget.rows;
        let mut outs = budget.outs;
        let mut segments = vec![];
        let decoding = self.running.iter().enumerate().filter(|(_, s)| s.is_decoding());
        for (i, s) in decoding {
            if rows > 0 && outs > 0 {
                segments.push(s.segment(i, 1, 1));
                (rows, outs) = (rows - 1, outs - 1);
            }
        }
        let mut chunk = budget.chunk;
        for (i, s) in self.running.iter().enumerate().filter(|(_, s)| s.pending() > 0 && !s.is_decoding()) {
            if chunk == 0 || rows == 0 {
                break;
            }
            let mut len = s.pending().min(chunk).min(rows);
            if budget.recurrent {
                len = recurrent_len(s.sent, s.pending(), chunk).min(rows);
                if len < s.pending() && !(s.sent + len).is_multiple_of(RECURRENT_CHUNK) {
                    continue; // the step has no room up to the next cut
                }
            }
            if let Work::Score { next } = s.work {
                // Rows before `next` need no output; of the others at most `outs` fit.
                let free = next.saturating_sub(s.sent);
                let fits = free + outs;
                if len > fits {
                    len = if budget.recurrent { fits / RECURRENT_CHUNK * RECURRENT_CHUNK } else { fits };
                }
            }
            let wanted = (s.sent..s.sent + len).filter(|p| s.wants(*p)).count();
            if len == 0 || wanted > outs {
                continue;
            }
            segments.push(s.segment(i, len, wanted));
            (rows, outs, chunk) = (rows - len, outs - wanted, chunk.saturating_sub(len));
        }
        segments
    }
}

/// The length of a prefill chunk that ends at the prompt's end or at a cut, at least up to the next cut.
fn recurrent_len(done: usize, pending: usize, chunk: usize) -> usize {
    if pending <= chunk {
        return pending;
    }
    let last = (done + chunk) / RECURRENT_CHUNK * RECURRENT_CHUNK;
    let next = (done / RECURRENT_CHUNK + 1) * RECURRENT_CHUNK;
    (last.max(next) - done).min(pending)
}

#[cfg(test)]
mod tests {
    use super::recurrent_len;

    #[test]
    fn recurrent_chunks_end_at_cuts_or_at_the_end() {
        assert_eq!(recurrent_len(0, 200, 100), 64);
        assert_eq!(recurrent_len(64, 136, 128), 128);
        assert_eq!(recurrent_len(0, 200, 7), 64);
        assert_eq!(recurrent_len(192, 8, 64), 8);
        assert_eq!(recurrent_len(192, 8, 1), 8);
        assert_eq!(recurrent_len(10, 300, 60), 54);
    }
}
