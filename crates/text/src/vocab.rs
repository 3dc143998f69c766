//! The tokens of a model: what each stands for, and which are special.

use crate::TokenizerError;
use aho_corasick::{AhoCorasick, MatchKind};
use regex_automata::meta::Regex;

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

    pub(crate) fn to_gguf(self) -> i32 {
        match self {
            Self::Normal => 1,
            Self::Unknown => 2,
            Self::Control => 3,
            Self::UserDefined => 4,
            Self::Unused => 5,
            Self::Byte => 6,
        }
    }
}

/// What `tokenizer.json` says about finding an added token in text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// It takes the white space before it.
    pub(crate) lstrip: bool,
    /// It takes the white space behind it.
    pub(crate) rstrip: bool,
    /// It is found only where no word touches it.
    pub(crate) single_word: bool,
    /// It is looked for in the normalised text, after those that are not.
    pub(crate) normalized: bool,
}

/// A token as text: its bytes and its kind.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) kind: Kind,
    pub(crate) rules: Rules,
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

    /// Sets the rules of the token of that text, where there is one.
    pub(crate) fn set_rules(&mut self, text: &str, rules: Rules) {
        let named = self.tokens.iter_mut().flatten().filter(|token| *token.bytes == *text.as_bytes());
        named.for_each(|token| token.rules = rules);
    }

    /// Sets the rules of every special token but those.
    pub(crate) fn set_special_rules(&mut self, but: &[&str], rules: Rules) {
        for token in self.tokens.iter_mut().flatten() {
            let special = matches!(token.kind, Kind::Control | Kind::Unknown | Kind::UserDefined);
            if special && !but.iter().any(|name| *token.bytes == *name.as_bytes()) {
                token.rules = rules;
            }
        }
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
    tokens: Vec<(u32, Rules)>,
}

impl Matcher {
    /// A matcher for the tokens of the given kinds: where text was brought into a normal form, those that are looked for
    /// there, in that form, and the others where not. `None` when there are none.
    pub(crate) fn new(
        vocab: &Vocab,
        kinds: &[Kind],
        normalize: Option<&dyn Fn(&str) -> String>,
    ) -> Result<Option<Self>, TokenizerError> {
        let (mut patterns, mut tokens) = (Vec::new(), Vec::new());
        for (id, token) in vocab.iter() {
            if !kinds.contains(&token.kind)
                || token.rules.normalized != normalize.is_some()
                || token.bytes.is_empty()
            {
                continue;
            }
            patterns.push(match (normalize, std::str::from_utf8(&token.bytes)) {
                (Some(normalize), Ok(text)) => normalize(text).into_bytes(),
                _ => token.bytes.to_vec(),
            });
            tokens.push((id, token.rules));
        }
        if tokens.is_empty() {
            return Ok(None);
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&patterns)
            .map_err(|e| TokenizerError::BadVocab(format!("special tokens cannot be indexed: {e}")))?;
        Ok(Some(Self { finder, tokens }))
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
            let (Some(_), Some(behind)) = (text.get(..found.start()), text.get(found.end()..)) else {
                continue;
            };
            // It may begin in white space that the one before took; it is a token all the same.
            let mut before = text.get(done..found.start()).unwrap_or_default();
            let (id, rules) = self.tokens[found.pattern().as_usize()];
            if rules.single_word && (before_word(&text[..found.start()]) || word(behind.chars().next())) {
                continue;
            }
            if rules.lstrip {
                before = before.trim_end();
            }
            if !before.is_empty() {
                part(Part::Text(before))?;
            }
            part(Part::Token(id))?;
            done = found.end();
            if rules.rstrip {
                done = text.len() - behind.trim_start().len();
            }
        }
        if done < text.len() {
            part(Part::Text(&text[done..]))?;
        }
        Ok(())
    }
}

/// Whether a word ends where the text ends.
fn before_word(text: &str) -> bool {
    word(text.chars().next_back())
}

/// Whether a character belongs to a word: letters, marks, numbers and what joins them.
fn word(c: Option<char>) -> bool {
    use std::sync::LazyLock;
    static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\w").ok());
    c.is_some_and(|c| WORD.as_ref().is_some_and(|word| word.is_match(c.encode_utf8(&mut [0; 4]).as_bytes())))
}

/// A stretch of input as [`Matcher::split`] sees it.
pub(crate) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}
