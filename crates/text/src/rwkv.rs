//! RWKV's tokenizer: at each place the longest token that fits.

use crate::TokenizerError;
use crate::trie::Trie;
use crate::vocab::{Kind, Vocab};

pub(crate) struct Rwkv {
    trie: Trie,
    unknown: Option<u32>,
}

impl Rwkv {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>) -> Result<Self, TokenizerError> {
        let ordinary =
            vocab.iter().filter(|(_, token)| matches!(token.kind, Kind::Normal | Kind::UserDefined));
        Ok(Self { trie: Trie::new(ordinary.map(|(id, token)| (&*token.bytes, id)))?, unknown })
    }

    /// Appends the tokens of `text`.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut rest = text.as_bytes();
        while let Some(&byte) = rest.first() {
            let longest = self.trie.prefixes(rest).last();
            let unknown = || self.unknown.map(|id| (1, id));
            let (length, id) = longest.or_else(unknown).ok_or(TokenizerError::NoToken { byte })?;
            out.push(id);
            rest = &rest[length..];
        }
        Ok(())
    }
}

/// The bytes of a token as the file writes it: the inside of a Python bytes literal.
pub(crate) fn unescape(id: usize, text: &[u8]) -> Result<Vec<u8>, TokenizerError> {
    let bad = || {
        let text = String::from_utf8_lossy(text);
        TokenizerError::BadVocab(format!("token {id} (`{text}`) has an escape that is not known"))
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'x') => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
                (high * 16 + low) as u8
            }
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(plain @ (b'\\' | b'\'' | b'"')) => plain,
            _ => return Err(bad()),
        });
    }
    Ok(bytes)
}
