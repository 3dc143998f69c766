//! What keeps conversations between requests.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use graph::backend::{DeviceError, Reading};
use tensor::ops::KV_BLOCK;

use super::Engine;
use crate::cache::Holding;
use crate::error::EngineError;
use crate::request::RequestId;
use crate::session::{Kept, SessionError, SessionId};
use crate::session_file::{Head, SavedSession, StateHead, assemble};

/// The bytes of a session on their way: see [`Engine::save_session`].
pub type Saving = Pin<Box<dyn Future<Output = Result<Vec<u8>, EngineError>> + Send>>;

impl Engine {
    /// Opens a session: requests that name it, one at a time, leave their keys, values and recurrent states to the next one,
    /// which computes only what its prompt does not share with them from the beginning on. With recurrent states there are two
    /// such places: the end of what was computed, and the prompt's end but one token. It costs no memory while nothing has run on
    /// it. Sessions that no request uses give their blocks back when requests need them, the one that was used longest ago
    /// first; then all is computed again. No bit of an answer depends on any of this.
    pub fn open_session(&mut self) -> SessionId {
        self.sessions.open()
    }

    /// Closes a session. A request that runs on it goes on.
    pub fn close_session(&mut self, id: SessionId) {
        self.sessions.close(id, &mut self.cache);
    }

    /// The ids that a session's states are of; empty while a request uses them, and when they were given up for others.
    ///
    /// # Errors
    /// There is no such session.
    pub fn session_tokens(&self, id: SessionId) -> Result<&[u32], EngineError> {
        let kept = &self.sessions.get(id)?.kept;
        Ok(&kept.tokens[..kept.computed])
    }

    /// Saves a session, with a `note` of the caller's that comes back with it, to bytes for [`SavedSession::parse`]. They hold
    /// what the session has now, whatever runs on it before the future ends, which needs no polling of the engine.
    ///
    /// # Errors
    /// There is no such session, or it is in use; the device was lost, or has no memory for a copy.
    pub fn save_session(&mut self, id: SessionId, note: &[u8]) -> Result<Saving, EngineError> {
        let session = self.sessions.get(id)?;
        if session.request.is_some() || self.sessions.unsettled(id, &self.in_flight()) {
            return Err(SessionError::Busy.into());
        }
        let kept = &session.kept;
        let mut states = vec![];
        let mut readings: Vec<Reading> = vec![];
        for state in &self.plans.states {
            let entries = entries_of(kept, state.blocks);
            let device = &self.devices[state.stage];
            let entry_bytes = device.entry_bytes(&state.handle)?;
            readings.push(device.read_state(&state.handle, &entries)?);
            states.push(StateHead { name: state.name.clone(), entries: entries.len(), entry_bytes });
        }
        let head = Head {
            fingerprint: self.fingerprint(),
            tokens: kept.tokens.clone(),
            computed: kept.computed,
            live: kept.live,
            snapshot: kept.snapshot,
            note: note.to_vec(),
            states,
        };
        Ok(Box::pin(async move {
            let mut states = vec![];
            for reading in readings {
                states.push(reading.await.map_err(EngineError::from)?);
            }
            Ok(assemble(&head, states))
        }))
    }

    /// Opens a session with what a saved one has. When running requests leave no room for its states, or the device is lost, it
    /// has its ids alone, and they are computed again.
    ///
    /// # Errors
    /// It was saved by an engine with another fingerprint ([`SessionError::OtherEngine`]), or does not fit together.
    pub fn restore_session(&mut self, saved: &SavedSession<'_>) -> Result<SessionId, EngineError> {
        let own = self.fingerprint();
        if saved.head.fingerprint != own {
            let saved = saved.head.fingerprint.clone();
            return Err(SessionError::OtherEngine { saved, own }.into());
        }
        let head = &saved.head;
        let recurrent = self.info().recurrent();
        let damaged = |problem: &str| Err(SessionError::Damaged(problem.to_owned()).into());
        if head.tokens.len() > self.recipe.size.context {
            return damaged("it has more tokens than the context");
        }
        if head.tokens.iter().any(|id| *id as usize >= self.info().vocab) {
            return damaged("it has tokens beyond the vocabulary");
        }
        if !recurrent && (head.live.is_some() || head.snapshot.is_some()) {
            return damaged("it has recurrent states");
        }
        let tokens = head.tokens.clone();
        let mut kept = Kept { tokens, live: head.live, snapshot: head.snapshot, ..Kept::default() };
        if self.lost.is_some() || !self.find_room(&mut kept, head.computed) {
            self.cache.free(&mut kept.holding);
            (kept.live, kept.snapshot) = (None, None);
            return Ok(self.sessions.open_with(kept, vec![]));
        }
        let written = self.write_states(saved, &kept);
        match written {
            Ok(writes) => Ok(self.sessions.open_with(kept, writes)),
            Err(error) => {
                // What was written is nobody's.
                self.cache.free(&mut kept.holding);
                Err(error)
            }
        }
    }

    /// Blocks and slots for a session, those of idle ones if need be.
    fn find_room(&mut self, kept: &mut Kept, computed: usize) -> bool {
        loop {
            let holding = &mut kept.holding;
            let room = self.cache.grow(holding, computed)
                && (kept.live.is_none() || self.cache.take_slot(&mut holding.slot))
                && (kept.snapshot.is_none() || self.cache.take_slot(&mut holding.snapshot));
            if room {
                kept.computed = computed;
                return true;
            }
            if !self.sessions.evict(&mut self.cache) {
                return false;
            }
        }
    }

    fn write_states(&self, saved: &SavedSession<'_>, kept: &Kept) -> Result<Vec<graph::Fence>, EngineError> {
        let mut given = saved.states();
        let mut all = vec![];
        for state in &self.plans.states {
            let device = &self.devices[state.stage];
            let entries = entries_of(kept, state.blocks);
            let want = (state.name.as_str(), entries.len(), device.entry_bytes(&state.handle)?);
            match given.next() {
                Some((head, bytes)) if (head.name.as_str(), head.entries, head.entry_bytes) == want => {
                    all.push((state, entries, bytes));
                }
                _ => {
                    let problem = format!("its states are not those of this model, at {}", state.name);
                    return Err(SessionError::Damaged(problem).into());
                }
            }
        }
        if let Some((head, _)) = given.next() {
            return Err(SessionError::Damaged(format!("this model has no state {}", head.name)).into());
        }
        let write = |(state, entries, bytes): (&crate::plans::StageState, Vec<u32>, &[u8])| {
            self.devices[state.stage].write_state(&state.handle, &entries, bytes)
        };
        Ok(all.into_iter().map(write).collect::<Result<_, DeviceError>>()?)
    }

    /// Requests with steps in flight, and in which of their lives; not asked where there are no sessions.
    pub(super) fn in_flight(&self) -> Vec<(RequestId, u32)> {
        if self.sessions.is_empty() {
            return vec![];
        }
        self.flights.iter().flat_map(|flight| &flight.segments).map(|s| (s.id, s.life)).collect()
    }

    /// Sees whether states that were written have arrived. A session whose states have not has none.
    pub(super) fn poll_writes(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut failed = vec![];
        let mut all = Poll::Ready(());
        for (id, writes) in self.sessions.writes() {
            writes.retain_mut(|fence| match Pin::new(fence).poll(cx) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    failed.extend(result.err().map(|error| (id, error)));
                    false
                }
            });
            if !writes.is_empty() {
                all = Poll::Pending;
            }
        }
        for (id, error) in failed {
            self.sessions.cut(id, 0);
            self.note_lost(&error.into());
        }
        all
    }
}

/// The blocks of what is kept, or its slots.
fn entries_of(kept: &Kept, blocks: bool) -> Vec<u32> {
    let Holding { pages, slot, snapshot } = &kept.holding;
    if blocks {
        return pages[..kept.computed.div_ceil(KV_BLOCK).min(pages.len())].to_vec();
    }
    let slots = [(kept.live, slot), (kept.snapshot, snapshot)];
    slots.into_iter().filter_map(|(position, slot)| position.and(*slot)).collect()
}
