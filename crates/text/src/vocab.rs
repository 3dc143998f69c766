//! The tokens of a model: what each stands for, and which are special.

use crate::TokenizerError;
use aho_corasick::{AhoCorasick, MatchKind};

/// What a token is for; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    pub(crate) fn from_gguf(id: usize, value: i32) -> Result<Self, TokenizerError> {
        Ok(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            other => {
                return Err(TokenizerError::BadVocab(format!("token {id} has unknown type {other}")));
            }
        })
    }
}

/// A token as text: its bytes and its kind.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) kind: Kind,
}

/// All tokens, by id. `None` where `tokenizer.json` leaves a hole.
pub(crate) struct Vocab {
    tokens: Vec<Option<Token>>,
}

impl Vocab {
    pub(crate) fn new(tokens: Vec<Option<Token>>) -> Self {
        Self { tokens }
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Token> {
        self.tokens.get(id as usize)?.as_ref()
    }

    pub(crate) fn kind(&self, id: u32) -> Option<Kind> {
        Some(self.get(id)?.kind)
    }

    /// Ids and tokens in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Token)> {
        self.tokens.iter().enumerate().filter_map(|(id, token)| Some((id as u32, token.as_ref()?)))
    }

    /// The first token of a kind.
    pub(crate) fn find(&self, kind: Kind) -> Option<u32> {
        self.iter().find(|(_, token)| token.kind == kind).map(|(id, _)| id)
    }
}

/// Finds the tokens that are matched in text as they stand, the longest first.
pub(crate) struct Matcher {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl Matcher {
    /// A matcher for the tokens of the given kinds, or `None` when there are none.
    pub(crate) fn new(vocab: &Vocab, kinds: &[Kind]) -> Result<Option<Self>, TokenizerError> {
        let (mut patterns, mut ids) = (Vec::new(), Vec::new());
        for (id, token) in vocab.iter() {
            if kinds.contains(&token.kind) && !token.bytes.is_empty() {
                patterns.push(&token.bytes);
                ids.push(id);
            }
        }
        if ids.is_empty() {
            return Ok(None);
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&patterns)
            .map_err(|e| TokenizerError::BadVocab(format!("special tokens cannot be indexed: {e}")))?;
        Ok(Some(Self { finder, ids }))
    }

    /// Calls `part` with each stretch of text between matches (never empty) and each matched token, in order.
    pub(crate) fn split<E>(
        &self,
        text: &str,
        mut part: impl FnMut(Part<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        for found in self.finder.find_iter(text) {
            // A token that begins or ends inside a character cannot be meant.
            let (Some(before), true) = (text.get(done..found.start()), text.is_char_boundary(found.end()))
            else {
                continue;
            };
            if !before.is_empty() {
                part(Part::Text(before))?;
            }
            part(Part::Token(self.ids[found.pattern().as_usize()]))?;
            done = found.end();
        }
        if done < text.len() {
            part(Part::Text(&text[done..]))?;
        }
        Ok(())
    }
}

/// A stretch of input as [`Matcher::split`] sees it.
pub(crate) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}
