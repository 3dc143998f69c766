//! Vocabularies of GGUF files that are put into the form of a `tokenizer.json`: one way to read each kind.

use crate::bpe::split_merges;
use crate::gguf::GgufVocab;
use crate::spm;
use crate::tokenizer::{Around, Tokenizer};
use crate::vocab::Kind;
use crate::{JsonFiles, TokenizerError};
use serde_json::{Value, json};

/// WordPiece, in the form of a `tokenizer.json`: GGUF marks the beginnings of words, which the form leaves unmarked, and
/// not their continuations, which the form marks.
pub(crate) fn word_piece(file: &GgufVocab) -> Result<Tokenizer, TokenizerError> {
    let lowercase = file.lowercase.unwrap_or(true);
    let mut tokens = Vec::with_capacity(file.tokens.len());
    for (id, text) in file.tokens.iter().enumerate() {
        let text = utf8(id, text)?;
        // Old converters leave the type of special tokens as it is.
        let special = text.starts_with('[') && text.ends_with(']');
        let kind = file.kind(id)?;
        tokens.push(match text.strip_prefix(spm::SPACE) {
            Some(word) => word.to_owned(),
            None if kind == Kind::Normal && !special => format!("##{text}"),
            None => text.to_owned(),
        });
    }
    let named = |id: Option<u32>, name: &str| {
        let found = id.map(|id| id as usize).or_else(|| tokens.iter().position(|token| token == name));
        found.ok_or_else(|| {
            TokenizerError::BadVocab(format!("there is no {name} token, which texts for BERT need"))
        })
    };
    let first = named(file.bos.or(file.class), "[CLS]")?;
    let last = named(file.separator.or(file.eos), "[SEP]")?;
    let unknown = named(file.unknown, "[UNK]")?;
    let around =
        [file.add_bos.unwrap_or(true).then_some(first), file.add_eos.unwrap_or(true).then_some(last)];
    let source = json!({
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": true,
            "strip_accents": file.strip_accents.unwrap_or(lowercase),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": tokens[unknown],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids_of(&tokens)?,
        },
    });
    through_json(file, source, &tokens, around)
}

/// BPE of plainly written words, in the form of a `tokenizer.json`.
pub(crate) fn words(file: &GgufVocab) -> Result<Tokenizer, TokenizerError> {
    let texts = file.tokens.iter().enumerate().map(|(id, text)| Ok(utf8(id, text)?.to_owned()));
    let tokens = texts.collect::<Result<Vec<_>, TokenizerError>>()?;
    let unknown = file.unknown.and_then(|id| tokens.get(id as usize));
    let Around { before, after } = file.special(file.add_bos.unwrap_or(false)).around()?;
    let around = [before, after].map(|ids| ids.first().map(|&id| id as usize));
    let source = json!({
        "normalizer": if file.lowercase == Some(true) { json!({"type": "Lowercase"}) } else { Value::Null },
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": Value::Null,
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "vocab": ids_of(&tokens)?,
            "merges": split_merges(&file.merges)?,
        },
    });
    through_json(file, source, &tokens, around)
}

fn utf8(id: usize, text: &[u8]) -> Result<&str, TokenizerError> {
    std::str::from_utf8(text).map_err(|_| TokenizerError::BadVocab(format!("token {id} is no UTF-8")))
}

/// The vocabulary as an object; two tokens of one text would make one of it.
fn ids_of(tokens: &[String]) -> Result<Value, TokenizerError> {
    let mut ids = serde_json::Map::with_capacity(tokens.len());
    for (id, text) in tokens.iter().enumerate() {
        if let Some(other) = ids.insert(text.clone(), id.into()) {
            return Err(TokenizerError::BadVocab(format!("tokens {other} and {id} are both `{text}`")));
        }
    }
    Ok(ids.into())
}

/// Completes `source` with the special tokens and with those that are added before and behind a text, and reads it.
fn through_json(
    file: &GgufVocab,
    mut source: Value,
    tokens: &[String],
    [before, after]: [Option<usize>; 2],
) -> Result<Tokenizer, TokenizerError> {
    let mut added = Vec::new();
    for (id, text) in tokens.iter().enumerate() {
        let kind = file.kind(id)?;
        if matches!(kind, Kind::Control | Kind::Unknown | Kind::UserDefined) {
            added.push(json!({
                "id": id, "content": text, "special": kind != Kind::UserDefined, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }));
        }
    }
    let special = [before, after].into_iter().flatten().map(|id| {
        let name = &tokens[id];
        (name.clone(), json!({"id": name, "ids": [id], "tokens": [name]}))
    });
    let special: serde_json::Map<String, Value> = special.collect();
    let piece = |id: usize| json!({"SpecialToken": {"id": tokens[id], "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single: Vec<Value> = before.map(piece).into_iter().chain([text]).chain(after.map(piece)).collect();
    source["added_tokens"] = added.into();
    source["post_processor"] =
        json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special});
    let bytes = serde_json::to_vec(&source).map_err(|e| TokenizerError::BadVocab(e.to_string()))?;
    let name = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize));
    let templates = file.chat_templates();
    let templates = templates.map(|(name, source)| json!({"name": name, "template": source}));
    let config = json!({
        "bos_token": name(file.bos), "eos_token": name(file.eos), "unk_token": name(file.unknown),
        "pad_token": name(file.padding), "chat_template": templates.collect::<Vec<_>>(),
    });
    let generation = json!({"eos_token_id": file.special(false).ends});
    Tokenizer::from_json(JsonFiles {
        tokenizer: &bytes,
        tokenizer_config: Some(config.to_string().as_bytes()),
        generation_config: Some(generation.to_string().as_bytes()),
        ..JsonFiles::default()
    })
}
