//! SentencePiece unigram (UGM): of all ways to cut a text into tokens, the one with the highest sum of scores (Kudo, 2018).

use crate::TokenizerError;
use crate::charsmap::{Charsmap, push};
use crate::growth;
use crate::spm::SPACE;
use crate::trie::Trie;
use crate::vocab::{Kind, Vocab};
use unicode_normalization::UnicodeNormalization;

/// How far the score of an unknown character lies below the lowest score, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A change to text before it is cut.
pub(crate) enum Step {
    Charsmap(Charsmap),
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    /// Runs of two spaces and more become this.
    Collapse(String),
    /// No spaces at the start and at the end, and no two in a row.
    ExtraSpaces,
    /// White space at the start, at the end.
    Strip(bool, bool),
    Replace(String, String),
}

impl Step {
    /// `None` where the text would become longer than the limit, in bytes.
    fn apply(&self, text: &str, limit: usize) -> Option<String> {
        let changed = match self {
            Self::Charsmap(map) => return map.apply(text, limit),
            Self::Nfc => text.nfc().collect(),
            Self::Nfd => text.nfd().collect(),
            Self::Nfkc => text.nfkc().collect(),
            Self::Nfkd => text.nfkd().collect(),
            Self::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Self::Collapse(with) => {
                let mut out = String::with_capacity(text.len());
                let mut rest = text;
                while let Some(at) = rest.find("  ") {
                    push(&mut out, &rest[..at], limit)?;
                    push(&mut out, with, limit)?;
                    rest = rest[at..].trim_start_matches(' ');
                }
                out + rest
            }
            Self::ExtraSpaces => {
                return Self::Collapse(" ".to_owned()).apply(text.trim_matches(' '), limit);
            }
            Self::Strip(start, end) => {
                let text = if *start { text.trim_start() } else { text };
                if *end { text.trim_end() } else { text }.to_owned()
            }
            Self::Replace(from, to) => {
                let mut out = String::with_capacity(text.len());
                let mut rest = text;
                while let Some((before, behind)) = rest.split_once(from.as_str()) {
                    push(&mut out, before, limit)?;
                    push(&mut out, to, limit)?;
                    rest = behind;
                }
                out + rest
            }
        };
        (changed.len() <= limit).then_some(changed)
    }

    /// As `tokenizer.json` calls it.
    fn name(&self) -> &'static str {
        match self {
            Self::Charsmap(_) => "Precompiled",
            Self::Nfc => "NFC",
            Self::Nfd => "NFD",
            Self::Nfkc => "NFKC",
            Self::Nfkd => "NFKD",
            Self::Lowercase => "Lowercase",
            Self::Collapse(_) | Self::Replace(..) => "Replace",
            Self::ExtraSpaces | Self::Strip(..) => "Strip",
        }
    }
}

/// How text is cut before tokens are looked for.
pub(crate) struct Shape {
    pub(crate) steps: Vec<Step>,
    /// White space of every kind separates words and is lost.
    pub(crate) split_white_space: bool,
    /// A space is put before what begins with none.
    pub(crate) space_prefix: bool,
    /// No token reaches over a space to its left.
    pub(crate) split_spaces: bool,
}

pub(crate) struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown: Option<u32>,
    unknown_score: f64,
    /// Tokens of bytes for what no token spells, where there are all of them.
    bytes: Option<Box<[u32; 256]>>,
    shape: Shape,
}

/// The tokens of the bytes, by bytes and tokens; `None` when there are not all of them.
pub(crate) fn all_bytes(tokens: impl Iterator<Item = (u8, u32)>) -> Option<Box<[u32; 256]>> {
    let mut found = [None; 256];
    for (byte, id) in tokens {
        found[byte as usize] = Some(id);
    }
    let found: Option<Vec<u32>> = found.into_iter().collect();
    found?.into_boxed_slice().try_into().ok()
}

/// The best way to a place in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last token begins; `usize::MAX` before there is a way.
    start: usize,
    /// `None` for an unknown character.
    token: Option<u32>,
}

impl Unigram {
    /// `raw` is each token's text as the file has it. Control tokens are matched elsewhere or not at all.
    pub(crate) fn new(
        vocab: &Vocab,
        raw: &[Vec<u8>],
        scores: Vec<f64>,
        unknown: Option<u32>,
        bytes: Option<Box<[u32; 256]>>,
        shape: Shape,
    ) -> Result<Self, TokenizerError> {
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::BadVocab(format!("the score of token {id} is not a number")));
        }
        let ordinary = |id: u32| {
            matches!(vocab.kind(id), Some(Kind::Normal | Kind::UserDefined | Kind::Unused | Kind::Byte))
        };
        let tokens =
            raw.iter().zip(0..scores.len() as u32).filter(|&(_, id)| ordinary(id) && Some(id) != unknown);
        let trie = Trie::new(tokens.map(|(text, id)| (text.as_slice(), id)))?;
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Self { trie, unknown_score: lowest - UNKNOWN_PENALTY, scores, unknown, bytes, shape })
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut normal = std::borrow::Cow::Borrowed(text);
        for (index, step) in self.shape.steps.iter().enumerate() {
            let changed = step.apply(&normal, growth::limit(text.len()));
            normal = changed.ok_or_else(|| growth::passed(step.name(), index, text.len()))?.into();
        }
        let mut best = Vec::new();
        let mut word = |word: &str| {
            let mut spelled = String::with_capacity(word.len() + word.len() / 4 + SPACE.len());
            if self.shape.space_prefix && !word.is_empty() && !word.starts_with([' ', '\u{2581}']) {
                spelled.push_str(SPACE);
            }
            for c in word.chars() {
                if c == ' ' { spelled.push_str(SPACE) } else { spelled.push(c) }
            }
            if !self.shape.split_spaces {
                return self.cut(&spelled, &mut best, out);
            }
            let mut rest = spelled.as_str();
            while !rest.is_empty() {
                let first = rest.chars().next().map_or(0, char::len_utf8);
                let end = rest[first..].find(SPACE).map_or(rest.len(), |at| at + first);
                self.cut(&rest[..end], &mut best, out)?;
                rest = &rest[end..];
            }
            Ok(())
        };
        if self.shape.split_white_space {
            normal.split_whitespace().try_for_each(word)
        } else {
            word(&normal)
        }
    }

    /// Cuts one stretch.
    fn cut(&self, text: &str, best: &mut Vec<Best>, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        best.clear();
        best.resize(text.len() + 1, Best { score: 0.0, start: usize::MAX, token: None });
        let offer = |place: &mut Best, score: f64, start: usize, token: Option<u32>| {
            if place.start == usize::MAX || score > place.score {
                *place = Best { score, start, token };
            }
        };
        for (at, c) in text.char_indices() {
            let here = best[at].score;
            let mut spelled = false;
            for (length, token) in self.trie.prefixes(&text.as_bytes()[at..]) {
                spelled |= length == c.len_utf8();
                offer(&mut best[at + length], here + self.scores[token as usize], at, Some(token));
            }
            if !spelled {
                offer(&mut best[at + c.len_utf8()], here + self.unknown_score, at, None);
            }
        }
        // Backwards: where tokens begin and end, runs of unknown characters as one.
        let mut pieces: Vec<(usize, usize, Option<u32>)> = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let Best { start, token, .. } = best[end];
            match pieces.last_mut() {
                Some((first, _, None)) if token.is_none() => *first = start,
                _ => pieces.push((start, end, token)),
            }
            end = start;
        }
        for &(start, end, token) in pieces.iter().rev() {
            let unknown = &text.as_bytes()[start..end];
            match (token.or_else(|| self.trie.get(unknown)), &self.bytes, self.unknown) {
                (Some(token), ..) => out.push(token),
                (None, Some(bytes), _) => out.extend(unknown.iter().map(|&byte| bytes[byte as usize])),
                (None, None, Some(id)) => out.push(id),
                (None, None, None) => return Err(TokenizerError::NoToken { byte: unknown[0] }),
            }
        }
        Ok(())
    }
}
