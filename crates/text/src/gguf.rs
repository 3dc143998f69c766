//! A tokenizer from the metadata of a GGUF file.

use crate::TokenizerError;
use crate::bpe::{Bpe, split_merges};
use crate::byte_level;
use crate::charsmap::Charsmap;
use crate::families::{self, Family, Spelling};
use crate::gguf_json;
use crate::pre_tokenize::PreTokenizer;
use crate::rwkv::{self, Rwkv};
use crate::spm::{self, Spm};
use crate::tokenizer::{Model, Parts, SpecialTokens, Tokenizer};
use crate::unigram::{self, Shape, Step, Unigram};
use crate::vocab::{Kind, Rules, Token, Vocab};

/// `tokenizer.ggml.model` of byte-level BPE.
pub(crate) const BYTE_LEVEL: &str = "gpt2";
/// `tokenizer.ggml.model` of SentencePiece BPE that merges by score.
pub(crate) const BY_SCORE: &str = "llama";

/// The `tokenizer.*` keys of a GGUF file, as they stand in it. Keys the file lacks are `None` or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE by score), `gemma4` (by merges), `t5`
    /// (SentencePiece unigram), `bert` (WordPiece), `rwkv` or `whitespace` (BPE of words).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before byte-level BPE.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of each token; need not be UTF-8.
    pub tokens: Vec<Vec<u8>>,
    /// `tokenizer.ggml.scores`: one per token; needed by `llama` and `t5`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: one per token, or empty when all are ordinary.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: pairs separated by a space, best first; needed by `gpt2`, `gemma4` and `whitespace`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`, as the key is spelled.
    pub separator: Option<u32>,
    /// `tokenizer.ggml.cls_token_id`.
    pub class: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.ggml.precompiled_charsmap`: SentencePiece's table of replacements; empty where there is none.
    pub charsmap: Vec<u8>,
    /// `tokenizer.ggml.normalizer.lowercase`.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`.
    pub strip_accents: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.NAME`: name and source of further templates.
    pub named_chat_templates: Vec<(String, String)>,
}

impl GgufVocab {
    pub(crate) fn kind(&self, id: usize) -> Result<Kind, TokenizerError> {
        self.token_types.get(id).map_or(Ok(Kind::Normal), |&value| Kind::from_gguf(id, value))
    }

    /// Each key under `tokenizer.ggml.` that names a token, with its value.
    pub fn token_ids(&self) -> [(&'static str, Option<u32>); 8] {
        [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unknown),
            ("padding_token_id", self.padding),
            ("seperator_token_id", self.separator),
            ("cls_token_id", self.class),
        ]
    }

    /// The special tokens, but for those that end generation by their names.
    pub(crate) fn special(&self, add_bos: bool) -> SpecialTokens {
        SpecialTokens {
            bos: self.bos,
            eos: self.eos,
            unknown: self.unknown,
            padding: self.padding,
            add_bos,
            add_eos: self.add_eos.unwrap_or(false),
            ends: [self.eos, self.eot, self.eom].into_iter().flatten().collect(),
        }
    }

    /// Names and sources of the chat templates.
    pub(crate) fn chat_templates(&self) -> impl Iterator<Item = (&str, &str)> {
        let default = self.chat_template.iter().map(|source| ("default", source.as_str()));
        default.chain(self.named_chat_templates.iter().map(|(name, source)| (name.as_str(), source.as_str())))
    }
}

impl Tokenizer {
    /// Makes a tokenizer from the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// When the model or pre-tokenizer is not known, or the vocabulary contradicts itself.
    pub fn from_gguf(file: GgufVocab) -> Result<Self, TokenizerError> {
        let count = file.tokens.len();
        if u32::try_from(count).is_err() || count == 0 {
            return Err(TokenizerError::BadVocab(format!("{count} tokens")));
        }
        if !file.token_types.is_empty() && file.token_types.len() != count {
            let types = file.token_types.len();
            return Err(TokenizerError::BadVocab(format!("{types} token types for {count} tokens")));
        }
        for (name, id) in file.token_ids() {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                let key = format!("tokenizer.ggml.{name}");
                let expected = format!("token ids lie below the size of the vocabulary, {count}");
                return Err(TokenizerError::BadVocab(format!("`{key}` is {id}; {expected}")));
            }
        }
        let pre = file.pre.as_deref();
        match file.model.as_str() {
            BYTE_LEVEL => {
                let name = pre.ok_or(TokenizerError::MissingPreTokenizer)?;
                let family = families::named(name)?;
                match family.spelling {
                    Spelling::ByteLevel => byte_level_bpe(file, family),
                    Spelling::SentencePiece => sentence_piece(file),
                    Spelling::Words => gguf_json::words(&file),
                }
            }
            BY_SCORE | "gemma4" => sentence_piece(file),
            "t5" => unigram(file),
            "bert" => gguf_json::word_piece(&file),
            "whitespace" => gguf_json::words(&file),
            "rwkv" => {
                let vocab = vocab(&file, |id, kind, text| match kind {
                    Kind::Normal | Kind::UserDefined => rwkv::unescape(id, text),
                    _ => Ok(text.to_vec()),
                })?;
                let model = Model::Rwkv(Box::new(Rwkv::new(&vocab, file.unknown)?));
                let add_bos = file.add_bos.unwrap_or(false);
                finish(file, vocab, model, add_bos, false)
            }
            other => Err(TokenizerError::UnknownModel(other.to_owned())),
        }
    }
}

fn byte_level_bpe(file: GgufVocab, family: &Family) -> Result<Tokenizer, TokenizerError> {
    let pre = PreTokenizer::new(family, file.pre.as_deref().unwrap_or_default())?;
    let mut vocab = vocab(&file, |_, kind, text| Ok(bpe_bytes(kind, text)))?;
    if let Some(mask) = family.mask {
        vocab.set_rules(mask, Rules { lstrip: true, ..Rules::default() });
    }
    let add_bos = file.add_bos.unwrap_or(family.add_bos);
    let merges = split_merges(&file.merges)?;
    // Byte-level vocabularies cover every byte; their "unknown" token is never a stand-in.
    let model = Model::Bpe(Box::new(Bpe::new(&vocab, &file.tokens, merges.into_iter(), pre)?));
    finish(file, vocab, model, add_bos, false)
}

/// What marks the vocabulary of Phi-3 and of models made from it, whatever their names.
const PHI3: [&str; 3] = ["<|placeholder1|>", "<|user|>", "<|assistant|>"];
/// Its special tokens that leave the white space behind them.
const PHI3_PLAIN: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// SentencePiece BPE: `llama` merges by score, everything else by its list.
fn sentence_piece(file: GgufVocab) -> Result<Tokenizer, TokenizerError> {
    let by_score = file.model == BY_SCORE;
    let mut vocab = vocab(&file, spm_bytes)?;
    let has = |name: &&str| file.tokens.iter().any(|text| text == name.as_bytes());
    if by_score && PHI3.iter().all(has) {
        // GGUF has no place for this: Phi-3's special tokens take the white space behind them.
        vocab.set_special_rules(&PHI3_PLAIN, Rules { rstrip: true, ..Rules::default() });
    }
    let prefix = file.add_space_prefix.unwrap_or(by_score);
    let unknown = file.unknown.or_else(|| vocab.find(Kind::Unknown));
    let model = if by_score {
        Spm::by_score(&vocab, &file.tokens, &file.scores, unknown, prefix)?
    } else {
        let merges = split_merges(&file.merges)?;
        Spm::by_merges(&vocab, &file.tokens, merges.into_iter(), unknown, prefix)?
    };
    let add_bos = file.add_bos.unwrap_or(file.bos.is_some());
    finish(file, vocab, Model::Spm(Box::new(model)), add_bos, prefix)
}

fn unigram(file: GgufVocab) -> Result<Tokenizer, TokenizerError> {
    if file.scores.len() != file.tokens.len() {
        let (scores, tokens) = (file.scores.len(), file.tokens.len());
        return Err(TokenizerError::BadVocab(format!("{scores} scores for {tokens} tokens")));
    }
    let mut vocab = vocab(&file, spm_bytes)?;
    // GGUF has no place for this: in every model that has it, the mask takes the white space before it.
    vocab.set_rules("<mask>", Rules { lstrip: true, ..Rules::default() });
    let unknown = file.unknown.or_else(|| vocab.find(Kind::Unknown));
    let bytes = vocab.iter().filter(|(_, token)| token.kind == Kind::Byte);
    let bytes = unigram::all_bytes(bytes.map(|(id, token)| (token.bytes[0], id)));
    let mut steps = Vec::new();
    if !file.charsmap.is_empty() {
        steps.push(Step::Charsmap(Charsmap::new(&file.charsmap)?));
    }
    match file.remove_extra_whitespaces {
        Some(true) => steps.push(Step::ExtraSpaces),
        Some(false) => {}
        // As transformers converts the models, for files that do not say.
        None => steps.push(Step::Collapse(" ".to_owned())),
    }
    let space_prefix = file.add_space_prefix.unwrap_or(true);
    let shape = Shape { steps, split_white_space: false, space_prefix, split_spaces: true };
    let scores = file.scores.iter().map(|&score| f64::from(score)).collect();
    let model = Unigram::new(&vocab, &file.tokens, scores, unknown, bytes, shape)?;
    let add_bos = file.add_bos.unwrap_or(false);
    let file = GgufVocab { add_eos: file.add_eos.or(Some(file.eos.is_some())), ..file };
    finish(file, vocab, Model::Unigram(Box::new(model)), add_bos, space_prefix)
}

fn finish(
    file: GgufVocab,
    vocab: Vocab,
    model: Model,
    add_bos: bool,
    strip_first_space: bool,
) -> Result<Tokenizer, TokenizerError> {
    let mut special = file.special(add_bos);
    special.add_named_ends(&vocab);
    let around = special.around()?;
    let chat_templates = file.chat_templates();
    let chat_templates = chat_templates.map(|(name, source)| (name.to_owned(), source.to_owned())).collect();
    Tokenizer::from_parts(Parts { model, vocab, special, around, chat_templates, strip_first_space })
}

fn vocab(
    file: &GgufVocab,
    bytes: impl Fn(usize, Kind, &[u8]) -> Result<Vec<u8>, TokenizerError>,
) -> Result<Vocab, TokenizerError> {
    let tokens = file.tokens.iter().enumerate().map(|(id, text)| {
        let kind = file.kind(id)?;
        let bytes = bytes(id, kind, text)?.into_boxed_slice();
        Ok(Some(Token { bytes, kind, rules: Rules::default() }))
    });
    Ok(Vocab::new(tokens.collect::<Result<_, TokenizerError>>()?))
}

/// What a token of a byte-level vocabulary stands for: special tokens are written plainly.
fn bpe_bytes(kind: Kind, text: &[u8]) -> Vec<u8> {
    let decoded =
        std::str::from_utf8(text).ok().filter(|_| kind == Kind::Normal).and_then(byte_level::decode);
    decoded.unwrap_or_else(|| text.to_vec())
}

fn spm_bytes(id: usize, kind: Kind, text: &[u8]) -> Result<Vec<u8>, TokenizerError> {
    Ok(match (kind, std::str::from_utf8(text)) {
        (Kind::Byte, _) => vec![spm::byte_token(id, text)?],
        (Kind::Normal | Kind::UserDefined, Ok(text)) => text.replace(spm::SPACE, " ").into_bytes(),
        _ => text.to_vec(),
    })
}
