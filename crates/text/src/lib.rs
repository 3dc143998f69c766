//! Text in and out of a model: tokenizers, incremental detokenisation, stop strings and chat templates.
//!
//! The crate does no I/O and reads no clock: vocabularies, templates and the time come in as data. Each call does its work before
//! it returns.
//!
//! - [`Tokenizer`] is made from GGUF metadata ([`GgufVocab`]) or from `tokenizer.json`, and answers the same questions
//!   for both.
//! - [`Detokenizer`] turns a stream of token ids into text without ever splitting a character.
//! - [`StopStrings`] cuts a stream of text at the first stop string, across chunk boundaries.
//! - [`ChatTemplate`] renders a conversation with the model's own Jinja template.

mod bpe;
mod byte_level;
mod charsmap;
mod detokenize;
mod error;
mod families;
mod gguf;
mod gguf_json;
mod growth;
mod jinja_source;
mod json;
mod json_bpe;
mod json_check;
mod json_gguf;
mod json_spm;
mod json_unigram;
mod merge;
mod pre_tokenize;
mod python;
mod rwkv;
mod spm;
mod stop;
mod template;
mod time;
mod tokenizer;
mod trie;
mod unigram;
mod vocab;

pub use detokenize::Detokenizer;
pub use error::{TemplateError, TokenizerError};
pub use gguf::GgufVocab;
pub use json::JsonFiles;
pub use stop::{StopStrings, Stopped};
pub use template::{ChatTemplate, Content, Message, RenderOptions};
pub use time::DateTime;
pub use tokenizer::{EncodeOptions, SpecialTokens, Tokenizer};
