//! The tokenizer type that every caller sees, whatever file it came from.

use crate::TokenizerError;
use crate::bpe::Bpe;
use crate::detokenize::Detokenizer;
use crate::json::JsonModel;
use crate::merge::MAX_BYTES;
use crate::rwkv::Rwkv;
use crate::spm::Spm;
use crate::unigram::Unigram;
use crate::vocab::{Kind, Matcher, Part, Vocab};
use std::borrow::Cow;

/// What [`Tokenizer::encode`] does beyond the text itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the BOS and EOS tokens that the model's file asks for.
    pub add_special: bool,
    /// Read special tokens written in the text (`<|im_start|>`) as those tokens. Set it for rendered templates, clear
    /// it for text from outside. Tokens that are added but not special are always matched.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self { add_special: true, parse_special: true }
    }
}

/// The tokens with a meaning of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// Fills batches.
    pub padding: Option<u32>,
    /// [`EncodeOptions::add_special`] puts `bos` in front.
    pub add_bos: bool,
    /// [`EncodeOptions::add_special`] puts `eos` behind.
    pub add_eos: bool,
    /// Every token after which generation is over: `eos`, end of turn and their like; ascending.
    pub ends: Vec<u32>,
}

/// Names by which models mark the end of a turn or of the text, used where the file does not list them all.
const END_NAMES: [&str; 16] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endofturn|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
];

impl SpecialTokens {
    /// Adds the special tokens that are known by name to end generation.
    pub(crate) fn add_named_ends(&mut self, vocab: &Vocab) {
        let special =
            vocab.iter().filter(|(_, token)| matches!(token.kind, Kind::Control | Kind::UserDefined));
        let special: Vec<_> = special.collect();
        let named = |name: &str| {
            special.iter().find(|(_, token)| *token.bytes == *name.as_bytes()).map(|(id, _)| *id)
        };
        self.ends.extend(END_NAMES.iter().filter_map(|name| named(name)));
        // Where there are `<|return|>` and `<|call|>`, `<|end|>` only ends a message within the answer.
        if let (Some(_), Some(_), Some(end)) = (named("<|return|>"), named("<|call|>"), named("<|end|>")) {
            self.ends.retain(|&id| id != end || self.eos == Some(end));
        }
        self.ends.sort_unstable();
        self.ends.dedup();
    }

    /// What is added to a text; an error when it does not exist.
    pub(crate) fn around(&self) -> Result<Around, TokenizerError> {
        let side = |add: bool, id: Option<u32>, name: &str| match (add, id) {
            (true, None) => {
                Err(TokenizerError::BadVocab(format!("asks for {name} to be added but names none")))
            }
            (true, Some(id)) => Ok(vec![id]),
            (false, _) => Ok(Vec::new()),
        };
        Ok(Around {
            before: side(self.add_bos, self.bos, "a BOS token")?,
            after: side(self.add_eos, self.eos, "an EOS token")?,
        })
    }
}

/// The algorithm behind a [`Tokenizer`].
pub(crate) enum Model {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    Unigram(Box<Unigram>),
    Rwkv(Box<Rwkv>),
    Json(Box<JsonModel>),
}

/// Tokens put around a text.
#[derive(Debug, Default)]
pub(crate) struct Around {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

/// What a reader of a vocabulary hands over.
pub(crate) struct Parts {
    pub(crate) model: Model,
    pub(crate) vocab: Vocab,
    pub(crate) special: SpecialTokens,
    /// What [`EncodeOptions::add_special`] puts before and after the text.
    pub(crate) around: Around,
    /// Name and source.
    pub(crate) chat_templates: Vec<(String, String)>,
    pub(crate) strip_first_space: bool,
}

/// Text to token ids and back. Made by [`Tokenizer::from_gguf`] or [`Tokenizer::from_json`].
pub struct Tokenizer {
    parts: Parts,
    /// Match special and added tokens in text.
    all: Matchers,
    /// Match added tokens that are not special.
    user: Matchers,
}

/// Finds tokens in the text as it is given, and what is left in the normalised text.
#[derive(Default)]
struct Matchers {
    given: Option<Matcher>,
    normalized: Option<Matcher>,
}

impl Matchers {
    fn new(vocab: &Vocab, kinds: &[Kind], model: &Model) -> Result<Self, TokenizerError> {
        let normalize = |text: &str| match model {
            Model::Bpe(model) => model.normalize(text).into_owned(),
            _ => text.to_owned(),
        };
        let matcher = |normalize| Matcher::new(vocab, kinds, normalize);
        Ok(Self { given: matcher(None)?, normalized: matcher(Some(&normalize))? })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let model = match self.parts.model {
            Model::Bpe(_) => "byte-level BPE",
            Model::Spm(_) => "SentencePiece BPE",
            Model::Unigram(_) => "SentencePiece unigram",
            Model::Rwkv(_) => "RWKV",
            Model::Json(_) => "tokenizer.json",
        };
        f.debug_struct("Tokenizer")
            .field("model", &model)
            .field("vocab_size", &self.vocab_size())
            .field("special", &self.parts.special)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn from_parts(parts: Parts) -> Result<Self, TokenizerError> {
        // The `tokenizers` crate finds its own.
        let (all, user) = match parts.model {
            Model::Json(_) => Default::default(),
            _ => {
                let matchers = |kinds: &[Kind]| Matchers::new(&parts.vocab, kinds, &parts.model);
                (
                    matchers(&[Kind::Control, Kind::Unknown, Kind::UserDefined])?,
                    matchers(&[Kind::UserDefined])?,
                )
            }
        };
        Ok(Self { parts, all, user })
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The token ids of `text`.
    ///
    /// # Errors
    /// When the text holds something that no token can spell, or is longer than a gigabyte.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_BYTES {
            return Err(TokenizerError::TooLong { bytes: text.len(), limit: MAX_BYTES });
        }
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special {
            ids.extend_from_slice(&self.parts.around.before);
        }
        self.encode_text(text, options, &mut ids)?;
        if options.add_special {
            ids.extend_from_slice(&self.parts.around.after);
        }
        Ok(ids)
    }

    fn encode_text(
        &self,
        text: &str,
        options: EncodeOptions,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if let Model::Json(model) = &self.parts.model {
            return model.encode(text, options, ids);
        }
        let matchers = if options.parse_special { &self.all } else { &self.user };
        let mut first = true;
        let mut part = |part: Part<'_>| {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(text) => match &self.parts.model {
                    Model::Bpe(model) => model.encode(text, ids)?,
                    Model::Spm(model) => model.encode(text, first, ids)?,
                    Model::Unigram(model) => model.encode(text, ids)?,
                    Model::Rwkv(model) => model.encode(text, ids)?,
                    Model::Json(model) => model.encode(text, options, ids)?,
                },
            }
            first = matches!(part, Part::Token(_));
            Ok(())
        };
        let mut rest = |found: Part<'_>| match (&found, &matchers.normalized, &self.parts.model) {
            (Part::Text(text), Some(matcher), Model::Bpe(model)) => {
                matcher.split(&model.normalize(text), &mut part)
            }
            (Part::Text(text), Some(matcher), _) => matcher.split(text, &mut part),
            _ => part(found),
        };
        match &matchers.given {
            Some(matcher) => matcher.split(text, rest),
            None if text.is_empty() => Ok(()),
            None => rest(Part::Text(text)),
        }
    }

    /// The bytes `id` stands for, special tokens as their name; `None` when there is no such token. A token may hold
    /// part of a character: use [`Detokenizer`] to get text.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        Some(Cow::Borrowed(&self.parts.vocab.get(id)?.bytes))
    }

    /// One more than the highest token id.
    pub fn vocab_size(&self) -> usize {
        self.parts.vocab.len()
    }

    /// The text of `ids`; bytes that are no UTF-8 become U+FFFD. Ids outside the vocabulary add nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        if let Model::Json(model) = &self.parts.model
            && let Some(text) = model.decode(ids, skip_special)
        {
            return text;
        }
        let mut stream = Detokenizer::new(self, skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(stream.push(id));
        }
        text.push_str(stream.finish());
        text
    }

    /// The tokens with a meaning of their own.
    pub fn special(&self) -> &SpecialTokens {
        &self.parts.special
    }

    /// Whether `id` is a control token rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.parts.vocab.kind(id), Some(Kind::Control | Kind::Unknown))
    }

    /// The source of the model's chat template, where it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template_named("default")
    }

    /// The source of the chat template of that name, where the model has several (`default`, `tool_use`).
    pub fn chat_template_named(&self, name: &str) -> Option<&str> {
        let found = self.parts.chat_templates.iter().find(|(known, _)| known == name);
        found.map(|(_, source)| source.as_str())
    }

    /// Whether the first space of a decoded text belongs to the encoding and not to the text.
    pub(crate) fn strips_first_space(&self) -> bool {
        self.parts.strip_first_space
    }
}
