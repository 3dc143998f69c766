//! A tokenizer from the metadata of a GGUF file.

use crate::TokenizerError;
use crate::bpe::{Bpe, split_merges};
use crate::byte_level;
use crate::pre_tokenize::PreTokenizer;
use crate::spm::{self, Spm};
use crate::tokenizer::{Model, Parts, SpecialTokens, Tokenizer};
use crate::vocab::{Kind, Token, Vocab};

/// The `tokenizer.*` keys of a GGUF file, as they stand in it. Keys the file lacks are `None` or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE by score) or `gemma4` (by merges).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before byte-level BPE.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of each token; need not be UTF-8.
    pub tokens: Vec<Vec<u8>>,
    /// `tokenizer.ggml.scores`: one per token; needed by `llama`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: one per token, or empty when all are ordinary.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: pairs separated by a space, best first; needed by `gpt2` and `gemma4`.
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
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
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
        let ids = [
            ("bos", file.bos),
            ("eos", file.eos),
            ("eot", file.eot),
            ("eom", file.eom),
            ("unknown", file.unknown),
            ("padding", file.padding),
        ];
        for (name, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                let key = format!("tokenizer.ggml.{name}_token_id");
                let expected = format!("token ids lie below the size of the vocabulary, {count}");
                return Err(TokenizerError::BadVocab(format!("`{key}` is {id}; {expected}")));
            }
        }
        let kind = |id: usize| {
            file.token_types.get(id).map_or(Ok(Kind::Normal), |&value| Kind::from_gguf(id, value))
        };
        match file.model.as_str() {
            "gpt2" => {
                let pre =
                    PreTokenizer::named(file.pre.as_deref().ok_or(TokenizerError::MissingPreTokenizer)?)?;
                let vocab = vocab(&file.tokens, kind, |_, kind, text| Ok(bpe_bytes(kind, text)))?;
                let add_bos = file.add_bos.unwrap_or(pre.add_bos());
                let merges = split_merges(&file.merges)?;
                // Byte-level vocabularies cover every byte; their "unknown" token is never a stand-in.
                let model = Model::Bpe(Box::new(Bpe::new(&vocab, &file.tokens, merges.into_iter(), pre)?));
                finish(file, vocab, model, add_bos, false)
            }
            "llama" | "gemma4" => {
                let vocab = vocab(&file.tokens, kind, spm_bytes)?;
                let prefix = file.add_space_prefix.unwrap_or(file.model == "llama");
                let unknown = file.unknown.or_else(|| vocab.find(Kind::Unknown));
                let model = if file.model == "llama" {
                    Spm::by_score(&vocab, &file.tokens, &file.scores, unknown, prefix)?
                } else {
                    let merges = split_merges(&file.merges)?;
                    Spm::by_merges(&vocab, &file.tokens, merges.into_iter(), unknown, prefix)?
                };
                let add_bos = file.add_bos.unwrap_or(file.bos.is_some());
                finish(file, vocab, Model::Spm(Box::new(model)), add_bos, prefix)
            }
            other => Err(TokenizerError::UnknownModel(other.to_owned())),
        }
    }
}

fn finish(
    file: GgufVocab,
    vocab: Vocab,
    model: Model,
    add_bos: bool,
    strip_first_space: bool,
) -> Result<Tokenizer, TokenizerError> {
    let mut special = SpecialTokens {
        bos: file.bos,
        eos: file.eos,
        unknown: file.unknown,
        padding: file.padding,
        add_bos,
        add_eos: file.add_eos.unwrap_or(false),
        ends: [file.eos, file.eot, file.eom].into_iter().flatten().collect(),
    };
    special.add_named_ends(&vocab);
    let around = special.around()?;
    let chat_templates =
        file.chat_template.map(|source| ("default".to_owned(), source)).into_iter().collect();
    Tokenizer::from_parts(Parts { model, vocab, special, around, chat_templates, strip_first_space })
}

fn vocab(
    tokens: &[Vec<u8>],
    kind: impl Fn(usize) -> Result<Kind, TokenizerError>,
    bytes: impl Fn(usize, Kind, &[u8]) -> Result<Vec<u8>, TokenizerError>,
) -> Result<Vocab, TokenizerError> {
    let tokens = tokens.iter().enumerate().map(|(id, text)| {
        let kind = kind(id)?;
        Ok(Some(Token { bytes: bytes(id, kind, text)?.into_boxed_slice(), kind }))
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
