//! What conversations keep between requests: blocks, slots, and the ids they are of.

use std::collections::BTreeMap;

use graph::Fence;

use crate::cache::{Cache, Holding};
use crate::error::EngineError;
use crate::request::RequestId;
use crate::sequence::Sequence;

/// Names a session for as long as the engine lives: see [`crate::Engine::open_session`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId(pub u64);

/// What is wrong with a session, or with a file of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It was closed, or is of another engine.
    #[error("there is no such session: it was closed")]
    Unknown,
    /// A request on it has not ended, or a step of its last request has not.
    #[error(
        "the session is in use: wait until its request has ended, or cancel it and poll until nothing is left to do"
    )]
    Busy,
    /// The bytes do not begin as those of a saved session.
    #[error("this is not a saved session")]
    Foreign,
    /// It was written by another version of this program, in another form.
    #[error("the saved session has version {found} of the format, this program reads version {known}")]
    Version {
        /// Of the file.
        found: u32,
        /// Of this program.
        known: u32,
    },
    /// Bytes are missing or were changed.
    #[error("the saved session is damaged: {0}")]
    Damaged(String),
    /// Its states mean nothing to this engine. What they were computed from is still there: [`crate::SavedSession::tokens`].
    #[error(
        "the session was saved by an engine with the fingerprint {saved}, this one has {own}: another model, device, \
         precision, KV type, context or build, whose states are not these"
    )]
    OtherEngine {
        /// Of the engine that saved it.
        saved: String,
        /// Of this one.
        own: String,
    },
}

/// What is kept of a sequence that has ended.
#[derive(Default)]
pub(crate) struct Kept {
    /// The ids it was computed from.
    pub(crate) tokens: Vec<u32>,
    /// Positions, from the first on, whose keys and values lie in the blocks.
    pub(crate) computed: usize,
    pub(crate) holding: Holding,
    /// The position whose recurrent state the slot has: that many tokens went into it.
    pub(crate) live: Option<usize>,
    /// The position whose recurrent state the second slot has.
    pub(crate) snapshot: Option<usize>,
}

impl Kept {
    /// What a sequence has, as far as its ids are known: a row in flight may be that of a token nobody has read.
    fn of(s: &mut Sequence, cache: &mut Cache) -> Kept {
        let computed = s.sent.min(s.tokens.len());
        let mut holding = std::mem::take(&mut s.holding);
        cache.cut(&mut holding, computed);
        let live = (s.recurrent && s.sent == computed && !s.in_snapshot && computed > 0).then_some(computed);
        if live.is_none() {
            cache.free_slot(&mut holding.slot);
        }
        if s.snapshot.is_none() {
            cache.free_slot(&mut holding.snapshot);
        }
        Kept { tokens: s.tokens[..computed].to_vec(), computed, holding, live, snapshot: s.snapshot }
    }

    /// Gives everything up but the ids.
    fn evict(&mut self, cache: &mut Cache) {
        cache.free(&mut self.holding);
        self.forget();
    }

    /// As if nothing had been computed; what it held is nobody's any more.
    fn forget(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        *self = Kept { tokens, ..Kept::default() };
    }

    /// Nothing from this position on can be relied on.
    fn cut(&mut self, position: usize) {
        self.computed = self.computed.min(position);
        self.live = self.live.filter(|live| *live <= position);
        self.snapshot = self.snapshot.filter(|snapshot| *snapshot <= position);
    }

    /// Positions of `prompt` that need not be computed again, at most `limit`, and whether the state there is the snapshot.
    fn reusable(&self, prompt: &[u32], limit: usize, recurrent: bool) -> (usize, bool) {
        let known = &self.tokens[..self.computed];
        let same = known.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(limit);
        if !recurrent {
            return (same, false);
        }
        let [live, snapshot] = [self.live, self.snapshot].map(|p| p.filter(|p| *p <= same).unwrap_or(0));
        (live.max(snapshot), snapshot > live)
    }
}

#[derive(Default)]
pub(crate) struct Session {
    pub(crate) kept: Kept,
    /// The request that runs or waits.
    pub(crate) request: Option<RequestId>,
    /// The request that left what is kept, and its life: a step of it may still be in flight.
    writer: Option<(RequestId, u32)>,
    /// States on their way to the device.
    writes: Vec<Fence>,
    /// When it was used last, counted in uses of any session.
    used: u64,
}

fn drop_kept(mut kept: Kept, cache: &mut Cache) {
    cache.free(&mut kept.holding);
}

/// All sessions.
#[derive(Default)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    next: u64,
    uses: u64,
}

impl Sessions {
    pub(crate) fn open(&mut self) -> SessionId {
        let id = SessionId(self.next);
        self.next += 1;
        self.all.insert(id, Session::default());
        id
    }

    /// As a session that was saved, with its states on their way.
    pub(crate) fn open_with(&mut self, kept: Kept, writes: Vec<Fence>) -> SessionId {
        let id = self.open();
        self.uses += 1;
        let session = Session { kept, writes, used: self.uses, ..Session::default() };
        self.all.insert(id, session);
        id
    }

    pub(crate) fn close(&mut self, id: SessionId, cache: &mut Cache) {
        if let Some(mut session) = self.all.remove(&id) {
            cache.free(&mut session.kept.holding);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn get(&self, id: SessionId) -> Result<&Session, SessionError> {
        self.all.get(&id).ok_or(SessionError::Unknown)
    }

    /// Gives the session to a request.
    pub(crate) fn claim(&mut self, id: SessionId, request: RequestId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.request = Some(request);
        }
    }

    /// The request is gone without having run, or with everything it had.
    pub(crate) fn release(&mut self, id: Option<SessionId>) {
        if let Some(session) = id.and_then(|id| self.all.get_mut(&id)) {
            session.request = None;
        }
    }

    /// Whether what the session keeps may still fail: a step of its last request is in flight, or its states are on their way.
    pub(crate) fn unsettled(&self, id: SessionId, in_flight: &[(RequestId, u32)]) -> bool {
        let Some(session) = self.all.get(&id) else { return false };
        !session.writes.is_empty() || session.writer.is_some_and(|writer| in_flight.contains(&writer))
    }

    /// States on their way to the device.
    pub(crate) fn writes(&mut self) -> impl Iterator<Item = (SessionId, &mut Vec<Fence>)> {
        self.all.iter_mut().map(|(id, session)| (*id, &mut session.writes))
    }

    /// What the session keeps is worthless from this position on.
    pub(crate) fn cut(&mut self, id: SessionId, position: usize) {
        if let Some(session) = self.all.get_mut(&id) {
            session.kept.cut(position);
        }
    }

    /// A step failed for a request that has ended: positions from `start` on are not computed.
    pub(crate) fn spoil(&mut self, writer: (RequestId, u32), start: usize) {
        for session in self.all.values_mut().filter(|s| s.writer == Some(writer)) {
            session.kept.cut(start);
        }
    }

    /// Lends what a session keeps to its next request, as far as the prompt is the same; gives the positions that need not be
    /// computed again.
    pub(crate) fn lend(&mut self, s: &mut Sequence, cache: &mut Cache) -> usize {
        let Some(session) = s.session.and_then(|id| self.all.get_mut(&id)) else { return 0 };
        let mut kept = std::mem::take(&mut session.kept);
        let (reused, from_snapshot) = kept.reusable(&s.tokens, s.reusable(), s.recurrent);
        cache.cut(&mut kept.holding, if reused == 0 { 0 } else { s.tokens.len() });
        s.holding = kept.holding;
        s.sent = reused;
        s.in_snapshot = from_snapshot;
        s.snapshot = kept.snapshot.filter(|p| *p <= reused);
        reused
    }

    /// Takes back what was lent to a request that does not run after all.
    pub(crate) fn give_back(&mut self, s: &mut Sequence, cache: &mut Cache) {
        let kept = Kept::of(s, cache);
        match s.session.and_then(|id| self.all.get_mut(&id)) {
            Some(session) if kept.computed > 0 => session.kept = kept,
            _ => drop_kept(kept, cache),
        }
        (s.sent, s.in_snapshot, s.snapshot) = (0, false, None);
    }

    /// Takes what a sequence that has ended leaves for the session's next request.
    pub(crate) fn keep(&mut self, s: &mut Sequence, cache: &mut Cache) {
        let kept = Kept::of(s, cache);
        let Some(session) = s.session.and_then(|id| self.all.get_mut(&id)) else {
            return drop_kept(kept, cache);
        };
        self.uses += 1;
        session.kept = kept;
        session.request = None;
        session.writer = Some((s.id, s.life));
        session.used = self.uses;
    }

    /// Blocks of sessions that no request uses.
    pub(crate) fn idle_blocks(&self) -> usize {
        self.all.values().map(|s| s.kept.holding.pages.len()).sum()
    }

    /// Has the session that was used longest ago give back what it holds; false when none holds anything.
    pub(crate) fn evict(&mut self, cache: &mut Cache) -> bool {
        let holding = self.all.values_mut().filter(|s| !s.kept.holding.is_empty());
        let oldest = holding.min_by_key(|s| s.used);
        oldest.map(|session| session.kept.evict(cache)).is_some()
    }

    /// The device was lost, and the cache with it.
    pub(crate) fn forget_all(&mut self) {
        for session in self.all.values_mut() {
            session.kept.forget();
            session.writes.clear();
        }
    }
}

impl From<SessionError> for EngineError {
    fn from(error: SessionError) -> EngineError {
        EngineError::Session(error)
    }
}

#[cfg(test)]
mod tests {
    use super::Kept;

    fn kept(tokens: &[u32], live: Option<usize>, snapshot: Option<usize>) -> Kept {
        Kept { tokens: tokens.to_vec(), computed: tokens.len(), live, snapshot, ..Kept::default() }
    }

    #[test]
    fn the_longest_prefix_is_reused() {
        let kept = kept(&[1, 2, 3, 4], None, None);
        let reuse = |prompt: &[u32], limit| kept.reusable(prompt, limit, false).0;
        assert_eq!(reuse(&[1, 2, 3, 4, 5], 4), 4);
        assert_eq!(reuse(&[1, 2, 3, 4], 3), 3);
        assert_eq!(reuse(&[1, 2, 9, 4, 5], 4), 2);
        assert_eq!((reuse(&[9], 0), reuse(&[], 0)), (0, 0));
    }

    #[test]
    fn recurrent_states_are_those_that_were_kept() {
        let reuse = |live, snapshot, prompt: &[u32]| {
            kept(&[1, 2, 3, 4, 5, 6], live, snapshot).reusable(prompt, prompt.len() - 1, true)
        };
        assert_eq!(reuse(Some(6), Some(3), &[1, 2, 3, 4, 5, 6, 7]), (6, false));
        assert_eq!(reuse(Some(6), Some(3), &[1, 2, 3, 4, 5, 6]), (3, true));
        assert_eq!(reuse(Some(6), Some(3), &[1, 2, 3, 9, 9]), (3, true));
        assert_eq!(reuse(Some(6), Some(3), &[1, 2, 9]), (0, false));
        assert_eq!(reuse(None, Some(3), &[1, 2, 3, 4, 5, 6, 7]), (3, true));
        assert_eq!(reuse(None, None, &[1, 2, 3, 4, 5, 6, 7]), (0, false));
    }

    #[test]
    fn what_a_failed_step_wrote_is_not_reused() {
        let mut kept = kept(&[1, 2, 3, 4, 5, 6], Some(6), Some(3));
        kept.cut(5);
        assert_eq!((kept.computed, kept.live, kept.snapshot), (5, None, Some(3)));
        kept.cut(2);
        assert_eq!((kept.computed, kept.live, kept.snapshot), (2, None, None));
    }
}
