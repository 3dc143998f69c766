//! Byte-level BPE: a text is split by the pre-tokenizer, and each piece merged by rank from its single bytes.

use crate::TokenizerError;
use crate::byte_level;
use crate::merge::Merger;
use crate::pre_tokenize::PreTokenizer;
use crate::vocab::Vocab;
use ahash::AHashMap;

pub(crate) struct Bpe {
    pre: PreTokenizer,
    /// Token of each single byte.
    bytes: [Option<u32>; 256],
    /// (left, right) -> (rank, merged token).
    merges: AHashMap<(u32, u32), (u32, u32)>,
    /// Tokens by their bytes, where a piece that is a whole token is taken without merging.
    whole: Option<AHashMap<Box<[u8]>, u32>>,
}

impl Bpe {
    pub(crate) fn new(vocab: &Vocab, merges: &[String], pre: PreTokenizer) -> Result<Self, TokenizerError> {
        let by_bytes = vocab.text_tokens();
        let mut bytes = [None; 256];
        for (byte, slot) in (0..=255u8).zip(&mut bytes) {
            *slot = by_bytes.get([byte].as_slice()).copied();
        }
        let mut ranks = AHashMap::with_capacity(merges.len());
        for (rank, line) in merges.iter().enumerate() {
            let bad = |why: &str| TokenizerError::BadVocab(format!("merge {rank} (`{line}`) {why}"));
            // The left side is never empty, so that a merge whose left side is itself a space still splits.
            let split = line.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
            let (left, right) =
                split.map(|at| (&line[..at], &line[at + 1..])).ok_or_else(|| bad("is not a pair"))?;
            let decode = |half: &str| byte_level::decode(half).ok_or_else(|| bad("is not byte-level text"));
            let (left, right) = (decode(left)?, decode(right)?);
            let joined = [left.as_slice(), right.as_slice()].concat();
            let id = |bytes: &[u8]| {
                by_bytes.get(bytes).copied().ok_or_else(|| bad("names a token that is not in the vocabulary"))
            };
            let rank =
                u32::try_from(rank).map_err(|_| bad("is past the number of merges a file can have"))?;
            ranks.entry((id(&left)?, id(&right)?)).or_insert((rank, id(&joined)?));
        }
        let whole = pre.whole_tokens().then_some(by_bytes);
        Ok(Self { pre, bytes, merges: ranks, whole })
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
