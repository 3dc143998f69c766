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
        let tokens = text_tokens(vocab, raw);
        let mut bytes = [None; 256];
        for (byte, slot) in (0..=255u8).zip(&mut bytes) {
            *slot = tokens.get(byte_level::letter(byte).encode_utf8(&mut [0; 4]).as_bytes()).copied();
        }
        let id = |text: &[u8]| tokens.get(text).copied();
        let merges = read_merges(merges, id, byte_level::is_in_alphabet)?;
        let by_bytes = |(text, id): (&&[u8], &u32)| {
            let bytes = byte_level::decode(std::str::from_utf8(text).ok()?)?;
            Some((bytes.into_boxed_slice(), *id))
        };
        let whole = pre.whole_tokens().then(|| tokens.iter().filter_map(by_bytes).collect());
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

/// The tokens that ordinary text can become, by their names, which spell different bytes if they differ. Only names in the
/// byte-level alphabet count: real vocabularies also hold a few plainly written ones (a bare U+200D), which no merge reaches.
/// Normal tokens win over user-defined ones of the same name, low ids over high.
fn text_tokens<'r>(vocab: &Vocab, raw: &'r [Vec<u8>]) -> AHashMap<&'r [u8], u32> {
    let mut map = AHashMap::with_capacity(raw.len());
    for kind in [Kind::Normal, Kind::UserDefined] {
        for (id, text) in raw.iter().enumerate().filter(|&(id, _)| vocab.kind(id as u32) == Some(kind)) {
            if std::str::from_utf8(text).is_ok_and(byte_level::is_in_alphabet) {
                map.entry(text.as_slice()).or_insert(id as u32);
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

/// Reads pairs, best first. `id` gives the token of a name, `spells` whether a name is one that can spell bytes.
pub(crate) fn read_merges<'m>(
    pairs: impl ExactSizeIterator<Item = (&'m str, &'m str)>,
    id: impl Fn(&[u8]) -> Option<u32>,
    spells: impl Fn(&str) -> bool,
) -> Result<Merges, TokenizerError> {
    let mut merges = AHashMap::with_capacity(pairs.len());
    let mut both = Vec::new();
    for (rank, (left, right)) in (0u32..).zip(pairs) {
        both.clear();
        both.extend_from_slice(left.as_bytes());
        both.extend_from_slice(right.as_bytes());
        let ids = id(left.as_bytes()).zip(id(right.as_bytes())).zip(id(&both));
        let Some((pair, merged)) = ids else {
            let why = match spells(left) && spells(right) {
                true => "names a token that is not in the vocabulary",
                false => "is not byte-level text",
            };
            return Err(TokenizerError::BadVocab(format!("merge {rank} (`{left}` and `{right}`) {why}")));
        };
        merges.entry(pair).or_insert((rank, merged));
    }
    Ok(merges)
}
