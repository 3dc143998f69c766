//! Saved sessions as bytes.
//!
//! [`SavedSession::MAGIC`], the version, then the fingerprint, five counts, the note, the ids, for each state a head and its bytes, and the
//! SHA-256 of all before it. Numbers are little-endian.

use sha2::{Digest, Sha256};

use crate::session::SessionError;

const VERSION: u32 = 1;
/// Bytes of a SHA-256.
const SUM: usize = 32;
/// Where there is no position.
const NONE: u64 = u64::MAX;
/// Hexadecimal digits of a fingerprint.
const FINGERPRINT: usize = 16;

/// What a file says before the bytes of the states.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) fingerprint: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) computed: usize,
    pub(crate) live: Option<usize>,
    pub(crate) snapshot: Option<usize>,
    pub(crate) note: Vec<u8>,
    pub(crate) states: Vec<StateHead>,
}

/// A state in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StateHead {
    pub(crate) name: String,
    pub(crate) entries: usize,
    pub(crate) entry_bytes: usize,
}

/// A saved session: what [`crate::Engine::save_session`] wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedSession<'b> {
    pub(crate) head: Head,
    /// The bytes of each state.
    states: Vec<&'b [u8]>,
}

/// The bytes of a session.
pub(crate) fn assemble(head: &Head, states: Vec<Vec<u8>>) -> Vec<u8> {
    let sizes = states.iter().map(Vec::len).sum::<usize>() + head.note.len() + 4 * head.tokens.len();
    let mut out = Vec::with_capacity(sizes + 64 * (head.states.len() + 4));
    let position = |p: Option<usize>| p.map_or(NONE, |p| p as u64);
    out.extend(SavedSession::MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend(head.fingerprint.as_bytes());
    let counts = [head.note.len() as u64, head.tokens.len() as u64, head.computed as u64];
    let counts = counts.into_iter().chain([position(head.live), position(head.snapshot)]);
    counts.chain([head.states.len() as u64]).for_each(|count| out.extend(count.to_le_bytes()));
    out.extend(&head.note);
    head.tokens.iter().for_each(|id| out.extend(id.to_le_bytes()));
    for (state, bytes) in head.states.iter().zip(states) {
        let counts = [state.name.len(), state.entries, state.entry_bytes];
        counts.into_iter().for_each(|count| out.extend((count as u64).to_le_bytes()));
        out.extend(state.name.as_bytes());
        out.extend(bytes);
    }
    let sum = Sha256::digest(&out);
    out.extend(sum);
    out
}

impl<'b> SavedSession<'b> {
    /// What the bytes of every saved session begin with, so that nobody reads a large file in vain.
    pub const MAGIC: [u8; 8] = *b"gristses";

    /// Reads a saved session. The bytes may be anybody's: nothing is allocated that they do not hold.
    ///
    /// # Errors
    /// They are none, of another version, or damaged.
    pub fn parse(bytes: &'b [u8]) -> Result<SavedSession<'b>, SessionError> {
        let rest = bytes.strip_prefix(&SavedSession::MAGIC).ok_or(SessionError::Foreign)?;
        let (version, _) = rest.split_first_chunk().ok_or_else(|| damaged("it ends before its version"))?;
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Err(SessionError::Version { found, known: VERSION });
        }
        let whole = bytes.split_last_chunk::<SUM>();
        let (body, sum) = whole.ok_or_else(|| damaged("it ends before its checksum"))?;
        if Sha256::digest(body)[..] != sum[..] {
            return Err(damaged("its checksum is another: it is cut off or was changed"));
        }
        let mut cursor = Cursor(&body[(SavedSession::MAGIC.len() + 4).min(body.len())..]);
        let fingerprint = cursor.text(FINGERPRINT)?;
        let (note_len, ids) = (cursor.size()?, cursor.size()?);
        let (computed, live, snapshot) = (cursor.size()?, cursor.position()?, cursor.position()?);
        let count = cursor.size()?;
        let note = cursor.take(note_len)?.to_vec();
        let ids = cursor.take(ids.checked_mul(4).ok_or_else(too_large)?)?;
        let tokens: Vec<u32> =
            ids.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let (mut heads, mut states) = (vec![], vec![]);
        for _ in 0..count {
            let (name, entries, entry_bytes) = (cursor.size()?, cursor.size()?, cursor.size()?);
            let name = cursor.text(name)?;
            states.push(cursor.take(entries.checked_mul(entry_bytes).ok_or_else(too_large)?)?);
            heads.push(StateHead { name, entries, entry_bytes });
        }
        if !cursor.0.is_empty() {
            return Err(damaged("there are bytes behind its states"));
        }
        let beyond = |position: &usize| *position == 0 || *position > computed;
        if computed > tokens.len() || [live, snapshot].iter().flatten().any(beyond) {
            return Err(damaged("it has states of positions without tokens"));
        }
        let head = Head { fingerprint, tokens, computed, live, snapshot, note, states: heads };
        Ok(SavedSession { head, states })
    }

    /// The ids that the session was computed from. On an engine of another fingerprint they are all there is to go on with.
    pub fn tokens(&self) -> &[u32] {
        &self.head.tokens
    }

    /// What the caller of [`crate::Engine::save_session`] put beside it.
    pub fn note(&self) -> &[u8] {
        &self.head.note
    }

    /// The fingerprint of the engine that saved it.
    pub fn fingerprint(&self) -> &str {
        &self.head.fingerprint
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = (&StateHead, &'b [u8])> {
        self.head.states.iter().zip(self.states.iter().copied())
    }
}

fn damaged(problem: &str) -> SessionError {
    SessionError::Damaged(problem.to_owned())
}

fn too_large() -> SessionError {
    damaged("a size in it is larger than any file")
}

/// What is left to be read.
struct Cursor<'b>(&'b [u8]);

impl<'b> Cursor<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], SessionError> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| damaged("a size in it is larger than the file"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn text(&mut self, len: usize) -> Result<String, SessionError> {
        let text = std::str::from_utf8(self.take(len)?);
        Ok(text.map_err(|_| damaged("a name in it is not UTF-8"))?.to_owned())
    }

    fn word(&mut self) -> Result<u64, SessionError> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| too_large())?))
    }

    fn size(&mut self) -> Result<usize, SessionError> {
        usize::try_from(self.word()?).map_err(|_| too_large())
    }

    fn position(&mut self) -> Result<Option<usize>, SessionError> {
        match self.word()? {
            NONE => Ok(None),
            word => Ok(Some(usize::try_from(word).map_err(|_| too_large())?)),
        }
    }
}
