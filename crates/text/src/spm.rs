//! SentencePiece BPE: the whole text is merged from characters, the pair with the highest-scoring token first, or, in
//! files that list merges, the pair that is listed first.

use crate::TokenizerError;
use crate::bpe::{Merges, read_merges};
use crate::merge::Merger;
use crate::vocab::{Kind, Vocab};
use ahash::AHashMap;

/// SentencePiece writes spaces as U+2581.
pub(crate) const SPACE: &str = "\u{2581}";

/// Token text (spaces as U+2581) -> (rank by descending score, token).
type Tokens = AHashMap<Box<[u8]>, (u32, u32)>;
/// Byte-fallback tokens.
type ByteTokens = [Option<u32>; 256];

pub(crate) struct Spm {
    tokens: Tokens,
    /// Where the file lists merges, they decide and not the ranks of `tokens`.
    merges: Option<Merges>,
    bytes: ByteTokens,
    unknown: Option<u32>,
    /// A space is put before text at the start and after a special token.
    pub(crate) space_prefix: bool,
}

impl Spm {
    /// A tokenizer that merges by score. `raw` is each token's text as the file has it.
    pub(crate) fn by_score(
        vocab: &Vocab,
        raw: &[Vec<u8>],
        scores: &[f32],
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        if scores.len() != raw.len() {
            let (scores, tokens) = (scores.len(), raw.len());
            return Err(TokenizerError::BadVocab(format!("{scores} scores for {tokens} tokens")));
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::BadVocab(format!("the score of token {id} is not a number")));
        }
        let mut distinct = scores.to_vec();
        distinct.sort_unstable_by(|a, b| b.total_cmp(a));
        distinct.dedup();
        let rank = |id: usize| distinct.partition_point(|&score| score > scores[id]) as u32;
        let (tokens, bytes) = read_tokens(vocab, raw, rank)?;
        Ok(Self { tokens, merges: None, bytes, unknown, space_prefix })
    }

    /// A tokenizer that merges in the order of a list.
    pub(crate) fn by_merges<'m>(
        vocab: &Vocab,
        raw: &[Vec<u8>],
        merges: impl ExactSizeIterator<Item = (&'m str, &'m str)>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        let (tokens, bytes) = read_tokens(vocab, raw, |_| 0)?;
        let id = |text: &[u8]| tokens.get(text).map(|&(_, id)| id);
        let merges = read_merges(merges, id, |_| true)?;
        Ok(Self { merges: Some(merges), tokens, bytes, unknown, space_prefix })
    }

    /// Whether every text can be spelled.
    pub(crate) fn has_all_bytes(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }

    /// Appends the tokens of `text`; `first` when it begins the input or follows a special token.
    pub(crate) fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let mut escaped = String::with_capacity(text.len() + SPACE.len());
        if first && self.space_prefix {
            escaped.push_str(SPACE);
        }
        for (index, part) in text.split(' ').enumerate() {
            if index > 0 {
                escaped.push_str(SPACE);
            }
            escaped.push_str(part);
        }
        let text = escaped.as_bytes();
        let mut merger = Merger::default();
        for (at, c) in escaped.char_indices() {
            let bytes = &text[at..at + c.len_utf8()];
            merger.push(bytes.len(), self.tokens.get(bytes).map(|&(_, id)| id));
        }
        match &self.merges {
            Some(merges) => merger.run(|left, right| merges.get(&(left.id?, right.id?)).copied()),
            None => merger.run(|left, right| {
                let (start, end) = (left.start as usize, (right.start + right.len) as usize);
                self.tokens.get(&text[start..end]).copied()
            }),
        }
        let mut previous_unknown = false;
        for symbol in merger.symbols() {
            if let Some(id) = symbol.id {
                out.push(id);
                previous_unknown = false;
                continue;
            }
            let bytes = symbol.slice(text);
            if let Some(ids) = bytes.iter().map(|&b| self.bytes[b as usize]).collect::<Option<Vec<u32>>>() {
                out.extend(ids);
                previous_unknown = false;
                continue;
            }
            // A run of unknown characters is one unknown token.
            let id = self.unknown.ok_or(TokenizerError::NoToken { byte: bytes[0] })?;
            if !previous_unknown {
                out.push(id);
            }
            previous_unknown = true;
        }
        Ok(())
    }
}

/// The tokens that text can become. Unused and control tokens are not among them.
fn read_tokens(
    vocab: &Vocab,
    raw: &[Vec<u8>],
    rank: impl Fn(usize) -> u32,
) -> Result<(Tokens, ByteTokens), TokenizerError> {
    let mut tokens = AHashMap::with_capacity(raw.len());
    let mut bytes = [None; 256];
    for (id, text) in raw.iter().enumerate() {
        match vocab.kind(id as u32) {
            Some(Kind::Byte) => bytes[byte_token(id, text)? as usize] = Some(id as u32),
            Some(Kind::Normal | Kind::UserDefined) => {
                tokens.entry(text.clone().into_boxed_slice()).or_insert((rank(id), id as u32));
            }
            _ => {}
        }
    }
    Ok((tokens, bytes))
}

/// The byte a fallback token `<0xNN>` stands for.
pub(crate) fn byte_token(id: usize, text: &[u8]) -> Result<u8, TokenizerError> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.strip_prefix("<0x")?.strip_suffix('>'))
        .filter(|hex| hex.len() == 2)
        .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        .ok_or_else(|| {
            let text = String::from_utf8_lossy(text);
            TokenizerError::BadVocab(format!("token {id} is marked as a byte but reads `{text}`"))
        })
}
