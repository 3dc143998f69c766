//! Token ids to text as they come.

use crate::Tokenizer;
use std::ops::Deref;

/// Turns a stream of token ids into text.
///
/// A token may end inside a character; its bytes are then held back until the character is complete, so that what
/// [`push`](Self::push) returns is always whole characters, and the same text in all, however it was cut into tokens.
/// Bytes that can no longer become UTF-8 are replaced with U+FFFD, one for each maximal broken sequence as
/// [`String::from_utf8_lossy`] does.
///
/// `T` is `&Tokenizer`, `Arc<Tokenizer>` or the like.
#[derive(Debug, Clone)]
pub struct Detokenizer<T> {
    tokenizer: T,
    skip_special: bool,
    /// Nothing was written yet and a first space is to be dropped.
    strip_space: bool,
    pending: Vec<u8>,
    text: String,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    /// Begins at the start of a text: where the tokenizer puts a space before the first word, that space is dropped.
    /// With `skip_special`, control tokens add nothing; otherwise their names appear.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        let strip_space = tokenizer.strips_first_space();
        Self { tokenizer, skip_special, strip_space, pending: Vec::new(), text: String::new() }
    }

    /// Begins in the middle of a text, as when a model continues a prompt: a first space is part of the text.
    pub fn continuing(tokenizer: T, skip_special: bool) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer, skip_special) }
    }

    /// The text that `id` completes; empty while a character is incomplete. Ids outside the vocabulary add nothing.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if self.skip_special && self.tokenizer.is_special(id) {
            return &self.text;
        }
        if let Some(bytes) = self.tokenizer.token_bytes(id) {
            let mut bytes = bytes.as_ref();
            if self.strip_space && !bytes.is_empty() {
                self.strip_space = false;
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
            self.pending.extend_from_slice(bytes);
        }
        self.take_complete();
        &self.text
    }

    /// Ends the text: an incomplete character becomes U+FFFD. The detokenizer may then be used for more text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }

    fn take_complete(&mut self) {
        let mut kept = 0;
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.text.push_str(chunk.valid());
            let broken = chunk.invalid();
            let may_continue = std::str::from_utf8(broken).is_err_and(|error| error.error_len().is_none());
            if may_continue && chunks.peek().is_none() {
                kept = broken.len();
            } else if !broken.is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - kept);
    }
}
