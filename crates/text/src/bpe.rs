//! Byte-level BPE: a text is split by the pre-tokenizer, and each piece merged by rank from its single bytes.

use crate::TokenizerError;
use crate::byte_level;
use crate::merge::Merger;
use crate::pre_tokenize::PreTokenizer;
use crate::vocab::{Kind, Vocab};
use ahash::AHashMap;
use std::borrow::Cow;

/// (left, right) -> (rank, merged token).
pub(crate) type Merges = AHashMap<(u32, u32), (u32, u32)>;

pub(crate) struct Bpe {
    pre: PreTokenizer,
    /// Token of each single byte.
    bytes: [Option<u32>; 256],
    merges: Merges,
    /// Tokens by their bytes, where a piece that is a whole token is taken without merging.
    whole: Option<AHashMap<Box<[u8]>, u32>>,
}

impl Bpe {
    /// `raw` is each token's text as the file has it.
    pub(crate) fn new<'m>(
        vocab: &Vocab,
        raw: &[Vec<u8>],
        merges: impl ExactSizeIterator<Item = (&'m str, &'m str)>,
        pre: PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let by_bytes = text_tokens(vocab, raw);
        let mut bytes = [None; 256];
        for (byte, slot) in (0..=255u8).zip(&mut bytes) {
            *slot = by_bytes.get([byte].as_slice()).copied();
        }
        let decode = |half: &str| byte_level::decode(half).map(Vec::into_boxed_slice);
        let merges = read_merges(merges, decode, |bytes| by_bytes.get(bytes).copied())?;
        let whole = pre.whole_tokens().then_some(by_bytes);
        Ok(Self { pre, bytes, merges, whole })
    }

    /// Whether every text can be spelled.
    pub(crate) fn has_all_bytes(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }

    /// The text in the form the vocabulary was trained on.
    pub(crate) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.pre.normalize(text)
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut merger = Merger::default();
        let text = self.pre.normalize(text);
        self.pre.split(&text, &mut |piece| self.encode_piece(piece.as_bytes(), &mut merger, out))
    }

    fn encode_piece(
        &self,
        piece: &[u8],
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if let Some(&id) = self.whole.as_ref().and_then(|whole| whole.get(piece)) {
            out.push(id);
            return Ok(());
        }
        merger.clear();
        for &byte in piece {
            let id = self.bytes[byte as usize].ok_or(TokenizerError::NoToken { byte })?;
            merger.push(1, Some(id));
        }
        merger.run(|left, right| self.merges.get(&(left.id?, right.id?)).copied());
        out.extend(merger.symbols().filter_map(|symbol| symbol.id));
        Ok(())
    }
}

/// The tokens that ordinary text can become, by their bytes. Only names in the byte-level alphabet count: real
/// vocabularies also hold a few plainly written ones (a bare U+200D), which no merge reaches. Normal tokens win over
/// user-defined ones of the same bytes, low ids over high.
fn text_tokens(vocab: &Vocab, raw: &[Vec<u8>]) -> AHashMap<Box<[u8]>, u32> {
    let mut map = AHashMap::with_capacity(raw.len());
    for kind in [Kind::Normal, Kind::UserDefined] {
        for (id, text) in raw.iter().enumerate().filter(|&(id, _)| vocab.kind(id as u32) == Some(kind)) {
            if let Some(bytes) = std::str::from_utf8(text).ok().and_then(byte_level::decode) {
                map.entry(bytes.into_boxed_slice()).or_insert(id as u32);
            }
        }
    }
    map
}

/// Splits `left right` lines at the space. The left side is never empty, so that one that is itself a space still splits.
pub(crate) fn split_merges(lines: &[String]) -> Result<Vec<(&str, &str)>, TokenizerError> {
    let pairs = lines.iter().enumerate().map(|(rank, line)| {
        let split = line.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        let pair = split.map(|at| (&line[..at], &line[at + 1..]));
        pair.ok_or_else(|| TokenizerError::BadVocab(format!("merge {rank} (`{line}`) is not a pair")))
    });
    pairs.collect()
}

/// Reads pairs, best first. `bytes` gives what half a pair stands for, `id` the token of some bytes.
pub(crate) fn read_merges<'m>(
    pairs: impl ExactSizeIterator<Item = (&'m str, &'m str)>,
    bytes: impl Fn(&str) -> Option<Box<[u8]>>,
    id: impl Fn(&[u8]) -> Option<u32>,
) -> Result<Merges, TokenizerError> {
    let mut merges = AHashMap::with_capacity(pairs.len());
    for (rank, (left, right)) in (0u32..).zip(pairs) {
        let bad =
            |why: &str| TokenizerError::BadVocab(format!("merge {rank} (`{left}` and `{right}`) {why}"));
        let decode = |half| bytes(half).ok_or_else(|| bad("is not byte-level text"));
        let (left, right) = (decode(left)?, decode(right)?);
        let token =
            |bytes: &[u8]| id(bytes).ok_or_else(|| bad("names a token that is not in the vocabulary"));
        let pair = (token(&left)?, token(&right)?);
        merges.entry(pair).or_insert((rank, token(&[left, right].concat())?));
    }
    Ok(merges)
}
