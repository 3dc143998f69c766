//! The tokenizer a checkpoint carries.

use formats::gguf::{Array, GgufMetadata, Strings, Value};
use formats::{Checkpoint, HfFile};
use text::{GgufVocab, JsonFiles, Tokenizer, TokenizerError};

use crate::error::Error;

/// Makes the tokenizer of a checkpoint, from GGUF metadata or from the files of a folder.
///
/// # Errors
/// No tokenizer data, or data that is not understood.
pub fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Tokenizer, Error> {
    match checkpoint.gguf() {
        Some(metadata) => {
            let vocab = vocab(metadata);
            let vocab = vocab.map_err(|e| {
                Error::NoTokenizer(format!("{e}; choose a file with a tokenizer, or convert the model again"))
            })?;
            Ok(Tokenizer::from_gguf(vocab)?)
        }
        None => Ok(Tokenizer::from_json(Files::of(checkpoint)?.json())?),
    }
}

fn vocab(m: &GgufMetadata) -> Result<GgufVocab, formats::gguf::MetaError> {
    let strings = |key: &str| m.get::<&Strings>(key);
    let id = |name: &str| m.get::<u32>(&format!("tokenizer.ggml.{name}_token_id"));
    let text = |key: &str| Ok(m.get::<&str>(key)?.map(str::to_owned));
    Ok(GgufVocab {
        model: m.require::<&str>("tokenizer.ggml.model")?.to_owned(),
        pre: text("tokenizer.ggml.pre")?,
        tokens: m
            .require::<&Strings>("tokenizer.ggml.tokens")?
            .iter()
            .map(|t| t.as_bytes().to_vec())
            .collect(),
        scores: m.get::<&[f32]>("tokenizer.ggml.scores")?.unwrap_or_default().to_vec(),
        token_types: m.get::<Vec<i32>>("tokenizer.ggml.token_type")?.unwrap_or_default(),
        merges: strings("tokenizer.ggml.merges")?
            .map(|s| s.iter().map(str::to_owned).collect())
            .unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unknown: id("unknown")?,
        padding: id("padding")?,
        separator: id("seperator")?,
        class: id("cls")?,
        add_bos: m.get::<bool>("tokenizer.ggml.add_bos_token")?,
        add_eos: m.get::<bool>("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: m.get::<bool>("tokenizer.ggml.add_space_prefix")?,
        remove_extra_whitespaces: m.get::<bool>("tokenizer.ggml.remove_extra_whitespaces")?,
        charsmap: m.get::<Vec<u8>>("tokenizer.ggml.precompiled_charsmap")?.unwrap_or_default(),
        lowercase: m.get::<bool>("tokenizer.ggml.normalizer.lowercase")?,
        strip_accents: m.get::<bool>("tokenizer.ggml.normalizer.strip_accents")?,
        chat_template: text("tokenizer.chat_template")?,
        named_chat_templates: m
            .iter()
            .filter_map(|(key, _)| key.strip_prefix("tokenizer.chat_template."))
            .map(|name| {
                let source = m.require::<&str>(&format!("tokenizer.chat_template.{name}"))?;
                Ok((name.to_owned(), source.to_owned()))
            })
            .collect::<Result<_, _>>()?,
    })
}

/// The files of a folder that describe its tokenizer.
struct Files {
    tokenizer: Vec<u8>,
    tokenizer_config: Option<Vec<u8>>,
    generation_config: Option<Vec<u8>>,
    config: Option<Vec<u8>>,
    template: Option<String>,
}

impl Files {
    fn of(checkpoint: &Checkpoint) -> Result<Files, Error> {
        let file = |f| checkpoint.hf_file(f);
        let Some(tokenizer) = file(HfFile::Tokenizer)? else {
            return Err(Error::NoTokenizer(
                "there is no tokenizer.json in the folder; fetch it from where the weights came".into(),
            ));
        };
        let (tokenizer_config, generation_config) =
            (file(HfFile::TokenizerConfig)?, file(HfFile::GenerationConfig)?);
        let config = checkpoint.config().map(|c| c.to_string().into_bytes());
        let template = file(HfFile::ChatTemplate)?.map(String::from_utf8).transpose();
        let template = template.map_err(|e| TokenizerError::BadJson {
            file: "chat_template.jinja",
            message: format!("is not UTF-8: {e}"),
        })?;
        Ok(Files { tokenizer, tokenizer_config, generation_config, config, template })
    }

    fn json(&self) -> JsonFiles<'_> {
        JsonFiles {
            tokenizer: &self.tokenizer,
            tokenizer_config: self.tokenizer_config.as_deref(),
            config: self.config.as_deref(),
            generation_config: self.generation_config.as_deref(),
            chat_template: self.template.as_deref(),
        }
    }
}

/// What a GGUF file says of the tokenizer of a folder, for an embedding table of `size` tokens: keys and values, in the order to
/// write them.
///
/// # Errors
/// No tokenizer data, data that is not understood, or that such a file cannot say.
pub fn tokenizer_metadata(checkpoint: &Checkpoint, size: usize) -> Result<Vec<(String, Value)>, Error> {
    let vocab = GgufVocab::from_json(Files::of(checkpoint)?.json(), size)?;
    let ids = vocab.token_ids();
    let tokens = texts(&vocab.tokens)?;
    let mut all = vec![("model".to_owned(), Value::String(vocab.model))];
    let mut add = |key: &str, value: Option<Value>| all.extend(value.map(|value| (key.to_owned(), value)));
    add("pre", vocab.pre.map(Value::String));
    add("tokens", Some(Value::Array(Array::String(tokens))));
    add("scores", (!vocab.scores.is_empty()).then_some(Value::Array(Array::F32(vocab.scores))));
    add("token_type", Some(Value::Array(Array::I32(vocab.token_types))));
    let merges = || Value::Array(Array::String(vocab.merges.iter().map(String::as_str).collect()));
    add("merges", (!vocab.merges.is_empty()).then(merges));
    ids.into_iter().for_each(|(key, id)| add(key, id.map(Value::U32)));
    add("add_bos_token", vocab.add_bos.map(Value::Bool));
    add("add_eos_token", vocab.add_eos.map(Value::Bool));
    add("add_space_prefix", vocab.add_space_prefix.map(Value::Bool));
    let mut all: Vec<_> =
        all.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
    all.extend(
        vocab.chat_template.map(|source| ("tokenizer.chat_template".to_owned(), Value::String(source))),
    );
    let named = vocab.named_chat_templates.into_iter();
    all.extend(
        named.map(|(name, source)| (format!("tokenizer.chat_template.{name}"), Value::String(source))),
    );
    Ok(all)
}

/// Tokens as a GGUF file holds them: texts.
fn texts(tokens: &[Vec<u8>]) -> Result<Strings, Error> {
    let text = |(id, token): (usize, &Vec<u8>)| match std::str::from_utf8(token) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(TokenizerError::NotInGguf(format!("token {id}, whose bytes are no UTF-8"))),
    };
    Ok(tokens.iter().enumerate().map(text).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_no_texts_are_refused_and_never_changed() {
        let read = texts(&[b"a".to_vec(), "\u{fffd}".into()]).unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), ["a", "\u{fffd}"]);
        let problem = texts(&[b"a".to_vec(), b"\xff".to_vec()]).err().unwrap().to_string();
        assert!(problem.contains("token 1") && problem.contains("cannot be converted"), "{problem}");
    }
}
