//! A tokenizer from the files of a Hugging Face folder, through the `tokenizers` crate.

use crate::TokenizerError;
use crate::byte_level;
use crate::growth::{self, Bounded};
use crate::json_bpe;
use crate::json_check;
use crate::json_spm;
use crate::json_unigram;
use crate::pre_tokenize::is_regular;
use crate::spm;
use crate::tokenizer::{Around, EncodeOptions, Model, Parts, SpecialTokens, Tokenizer};
use crate::vocab::{Kind, Rules, Token, Vocab};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use tokenizers::{DecoderWrapper, ModelWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

/// The contents of the files that describe a tokenizer in a Hugging Face folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`: BOS and EOS, chat template.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `config.json`: its token ids win over the names in `tokenizer_config.json`.
    pub config: Option<&'a [u8]>,
    /// `generation_config.json`: may list several EOS ids.
    pub generation_config: Option<&'a [u8]>,
    /// `chat_template.jinja`: wins over the template in `tokenizer_config.json`.
    pub chat_template: Option<&'a str>,
}

/// What the decoder of a `tokenizer.json` makes of a token's text.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scheme {
    ByteLevel,
    /// U+2581 is a space; `<0xNN>` is a byte where the flag is set.
    Metaspace {
        byte_fallback: bool,
        strip_first_space: bool,
    },
    /// Words are joined by spaces and continued by a prefix; only whole texts are decoded right.
    WordPiece,
    Plain,
}

/// Longest text for a tokenizer that looks around with regular expressions of the `tokenizers` crate. These fail, and end
/// the splitting silently, when a match needs a stack of a million entries; no run of characters in a text this long can.
const REGEX_MAX_BYTES: usize = 500_000;

/// The tokenizer of the `tokenizers` crate, but for its normaliser.
type Library =
    TokenizerImpl<ModelWrapper, Bounded, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

pub(crate) struct JsonModel {
    inner: Library,
    /// The same, with special tokens in the text read as ordinary text; made when first needed.
    plain: OnceLock<Library>,
    scheme: Scheme,
    /// The post-processor adds the special tokens.
    post_processor: bool,
    /// Longest text in bytes.
    limit: usize,
}

impl Tokenizer {
    /// Makes a tokenizer from the files of a Hugging Face folder. `truncation` and `padding` of `tokenizer.json` are for batches
    /// of examples and are ignored: [`Tokenizer::encode`] gives all ids of a text, and no others.
    ///
    /// # Errors
    /// When a file does not parse, says something that is not known, or names a token that the vocabulary does not have.
    pub fn from_json(files: JsonFiles<'_>) -> Result<Self, TokenizerError> {
        let source = parse("tokenizer.json", files.tokenizer)?;
        json_check::check(&source)?;
        let scheme = Scheme::of(&source["decoder"]);
        let (vocab, raw) = read_vocab(&source, scheme)?;
        let bpe =
            || json_bpe::read(&source, &vocab, &raw).map(|(m, around)| (Model::Bpe(Box::new(m)), around));
        let spm =
            || json_spm::read(&source, &vocab, &raw).map(|(m, around)| (Model::Spm(Box::new(m)), around));
        let unigram = || {
            json_unigram::read(&source, &vocab, &raw).map(|(m, around)| (Model::Unigram(Box::new(m)), around))
        };
        let (model, mut around, post_processor) = match bpe().or_else(spm).or_else(unigram) {
            Some((model, around)) => (model, around, false),
            None => {
                let model = JsonModel::new(&source, scheme)?;
                let post_processor = model.post_processor;
                (Model::Json(Box::new(model)), Around::default(), post_processor)
            }
        };

        let optional = |name, bytes: Option<&[u8]>| bytes.map_or(Ok(Value::Null), |bytes| parse(name, bytes));
        let tokenizer_config = optional("tokenizer_config.json", files.tokenizer_config)?;
        let config = optional("config.json", files.config)?;
        let generation = optional("generation_config.json", files.generation_config)?;
        let mut special = read_special(&vocab, &raw, [&tokenizer_config, &config, &generation])?;
        if post_processor || !around.before.is_empty() || !around.after.is_empty() {
            // A post-processor has the last word on what is added.
            (special.add_bos, special.add_eos) = (false, false);
        } else {
            around = special.around()?;
        }
        let chat_templates = match files.chat_template {
            Some(source) => vec![("default".to_owned(), source.to_owned())],
            None => read_templates(&tokenizer_config["chat_template"])?,
        };
        let strip_first_space = match scheme {
            Scheme::Metaspace { strip_first_space, .. } => strip_first_space,
            Scheme::WordPiece => true,
            Scheme::ByteLevel | Scheme::Plain => false,
        };
        Tokenizer::from_parts(Parts { model, vocab, special, around, chat_templates, strip_first_space })
    }
}

impl JsonModel {
    fn new(source: &Value, scheme: Scheme) -> Result<Self, TokenizerError> {
        let bad = |message: String| TokenizerError::BadJson { file: "tokenizer.json", message };
        // As it was read here, so that the crate meets nothing that another parser let through.
        let bytes = serde_json::to_vec(source).map_err(|e| bad(e.to_string()))?;
        let made = contained(|| {
            let mut inner: Library = serde_json::from_slice(&bytes)?;
            inner.with_truncation(None)?;
            inner.with_padding(None);
            let post_processor = !inner.encode_fast("", true)?.is_empty();
            Ok((inner, post_processor))
        });
        let (inner, post_processor) = made.map_err(|e| match e {
            TokenizerError::Encode(message) => bad(message),
            e => e,
        })?;
        let limit = if looks_around(source) { REGEX_MAX_BYTES } else { usize::MAX };
        Ok(Self { inner, plain: OnceLock::new(), scheme, post_processor, limit })
    }

    /// Appends the tokens of `text`. Special tokens are added here only where the post-processor adds them.
    pub(crate) fn encode(
        &self,
        text: &str,
        options: EncodeOptions,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if text.len() > self.limit {
            return Err(TokenizerError::TooLong { bytes: text.len(), limit: self.limit });
        }
        let add = options.add_special && self.post_processor;
        let encoding = contained(|| {
            let tokenizer = if options.parse_special {
                &self.inner
            } else {
                self.plain.get_or_init(|| {
                    let mut plain = self.inner.clone();
                    plain.set_encode_special_tokens(true);
                    plain
                })
            };
            tokenizer.encode_fast(text, add)
        })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// The text of `ids`, where it is more than its tokens put together.
    pub(crate) fn decode(&self, ids: &[u32], skip_special: bool) -> Option<String> {
        let whole = self.scheme == Scheme::WordPiece;
        whole.then(|| contained(|| self.inner.decode(ids, skip_special)).ok()).flatten()
    }
}

/// Runs code of the `tokenizers` crate, which panics on some contradictions of a file rather than to return an error. What
/// it works on is made anew or only read.
fn contained<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TokenizerError> {
    growth::failure();
    let done = catch_unwind(AssertUnwindSafe(work));
    if let Some(error) = growth::failure() {
        return Err(error);
    }
    match done {
        Ok(done) => done.map_err(|error| TokenizerError::Encode(error.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            Err(TokenizerError::Encode(format!("the tokenizers library failed: {text}")))
        }
    }
}

impl Scheme {
    pub(crate) fn of(decoder: &Value) -> Self {
        let steps = match decoder["decoders"].as_array() {
            Some(steps) => steps.iter().collect(),
            None => vec![decoder],
        };
        let find = |kind: &str| steps.iter().copied().find(|step| step["type"] == kind);
        let replaces = |step: &&Value| step["type"] == "Replace" && step["pattern"]["String"] == spm::SPACE;
        if find("ByteLevel").is_some() {
            Self::ByteLevel
        } else if let Some(step) = find("Metaspace") {
            let byte_fallback = find("ByteFallback").is_some();
            Self::Metaspace { byte_fallback, strip_first_space: step["prepend_scheme"] != "never" }
        } else if steps.iter().any(replaces) {
            let strip_first_space = find("Strip").is_some_and(|step| step["start"].as_u64() > Some(0));
            Self::Metaspace { byte_fallback: find("ByteFallback").is_some(), strip_first_space }
        } else if find("WordPiece").is_some() {
            Self::WordPiece
        } else {
            Self::Plain
        }
    }

    fn bytes(self, text: &str) -> (Vec<u8>, Kind) {
        let normal = |bytes: Vec<u8>| (bytes, Kind::Normal);
        match self {
            Self::ByteLevel => normal(byte_level::decode(text).unwrap_or_else(|| text.into())),
            Self::Metaspace { byte_fallback, .. } => match spm::byte_token(0, text.as_bytes()) {
                Ok(byte) if byte_fallback => (vec![byte], Kind::Byte),
                _ => normal(text.replace(spm::SPACE, " ").into_bytes()),
            },
            Self::WordPiece => {
                normal(text.strip_prefix("##").map_or_else(|| format!(" {text}"), str::to_owned).into())
            }
            Self::Plain => normal(text.into()),
        }
    }
}

pub(crate) fn parse(file: &'static str, bytes: &[u8]) -> Result<Value, TokenizerError> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    // Configurations on the hub hold `Infinity` and `NaN`, which no strict parser takes; no key read here has them.
    serde_json::from_slice(bytes).or_else(|error| {
        let text = String::from_utf8_lossy(bytes);
        let strict = text.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null");
        serde_json::from_str(&strict)
            .map_err(|_| TokenizerError::BadJson { file, message: error.to_string() })
    })
}

/// Whether text passes through a regular expression that looks around, and so may give up. `ByteLevel` has one of its own.
fn looks_around(source: &Value) -> bool {
    fn any(value: &Value) -> bool {
        match value {
            Value::Object(map) => {
                let pattern = map.get("Regex").and_then(Value::as_str);
                pattern.is_some_and(|pattern| !is_regular(pattern))
                    || map.get("use_regex") == Some(&Value::Bool(true))
                    || map.values().any(any)
            }
            Value::Array(items) => items.iter().any(any),
            _ => false,
        }
    }
    any(&source["pre_tokenizer"]) || any(&source["normalizer"])
}

/// A token's id and text; kind and rules where it is an added one.
type Entry<'v> = (u32, &'v str, Option<(Kind, Rules)>);

/// The tokens by id: what each stands for, and its text as the file has it (empty in holes).
pub(crate) fn read_vocab(source: &Value, scheme: Scheme) -> Result<(Vocab, Vec<Vec<u8>>), TokenizerError> {
    let bad = |message: &str| TokenizerError::BadJson { file: "tokenizer.json", message: message.to_owned() };
    let id = |value: &Value| {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| bad("a token's id is no id"))
    };
    let mut entries: Vec<Entry<'_>> = Vec::new();
    match &source["model"]["vocab"] {
        Value::Object(vocab) => {
            for (text, value) in vocab {
                entries.push((id(value)?, text, None));
            }
        }
        // Unigram: pairs of text and score, in order of id.
        Value::Array(pieces) => {
            for (id, piece) in (0u32..).zip(pieces) {
                entries.push((id, piece[0].as_str().ok_or_else(|| bad("a piece is no text"))?, None));
            }
        }
        _ => return Err(bad("model.vocab is missing")),
    }
    for token in source["added_tokens"].as_array().into_iter().flatten() {
        let kind = if token["special"] == true { Kind::Control } else { Kind::UserDefined };
        let text = token["content"].as_str().ok_or_else(|| bad("an added token has no content"))?;
        entries.push((id(&token["id"])?, text, Some((kind, json_bpe::rules(token)))));
    }
    let highest =
        entries.iter().map(|&(id, ..)| id as usize).max().ok_or_else(|| bad("there are no tokens"))?;
    // Ids are nearly dense in every real file; a stray one must not size a table.
    if highest >= entries.len().saturating_mul(16).saturating_add(1 << 16) {
        return Err(bad(&format!("there is a token {highest} among only {}", entries.len())));
    }
    let mut tokens = vec![None; highest + 1];
    let mut raw = vec![Vec::new(); highest + 1];
    for (id, text, added) in entries {
        let ((bytes, kind), rules) = match added {
            Some((kind, rules)) => ((text.as_bytes().to_vec(), kind), rules),
            None => (scheme.bytes(text), Rules::default()),
        };
        tokens[id as usize] = Some(Token { bytes: bytes.into_boxed_slice(), kind, rules });
        raw[id as usize] = text.as_bytes().to_vec();
    }
    Ok((Vocab::new(tokens), raw))
}

/// A token named in a configuration: plainly, or as an object with its content.
fn token_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// A configuration, its file's name and how many tokens the model has: some more than the tokenizer gives names to.
struct Ids<'v> {
    file: &'static str,
    value: &'v Value,
    count: u64,
}

impl Ids<'_> {
    /// The ids of a role, such as `eos`: one number or a list of them.
    fn of(&self, role: &str) -> Result<Vec<u32>, TokenizerError> {
        let key = format!("{role}_token_id");
        let value = &self.value[&key];
        let list = match value {
            // Files from before null was written for none have -1.
            Value::Null => return Ok(Vec::new()),
            value if role == "pad" && value.as_i64() == Some(-1) => return Ok(Vec::new()),
            Value::Array(list) => list.as_slice(),
            value => std::slice::from_ref(value),
        };
        let id = |id: &Value| {
            let id = id.as_u64().filter(|&id| id < self.count).and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| TokenizerError::BadJson {
                file: self.file,
                message: format!(
                    "`{key}` is {value}; token ids lie below the size of the vocabulary, {}",
                    self.count
                ),
            })
        };
        list.iter().map(id).collect()
    }
}

fn read_special(
    vocab: &Vocab,
    raw: &[Vec<u8>],
    [tokenizer_config, config, generation]: [&Value; 3],
) -> Result<SpecialTokens, TokenizerError> {
    let token = |name: &str| raw.iter().position(|text| text == name.as_bytes()).map(|id| id as u32);
    let text_config = &config["text_config"];
    let sizes = [config, text_config].into_iter().filter_map(|source| source["vocab_size"].as_u64());
    let count = sizes.chain([vocab.len() as u64]).max().unwrap_or_default();
    let ids = |file, value| Ids { file, value, count };
    // What the tokenizer has no name for cannot be met in its texts.
    let known = |id: &u32| vocab.get(*id).is_some();
    let id = |role: &str| -> Result<Option<u32>, TokenizerError> {
        for source in [config, text_config] {
            if let Some(&id) = ids("config.json", source).of(role)?.iter().find(|id| known(id)) {
                return Ok(Some(id));
            }
        }
        let Some(name) = token_name(&tokenizer_config[format!("{role}_token")]) else {
            return Ok(None);
        };
        token(name).map(Some).ok_or_else(|| TokenizerError::BadJson {
            file: "tokenizer_config.json",
            message: format!("{role}_token `{name}` is not in the vocabulary"),
        })
    };
    let flag = |key: &str| match &tokenizer_config[key] {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        other => Err(TokenizerError::BadJson {
            file: "tokenizer_config.json",
            message: format!("`{key}` is {other}, not true or false"),
        }),
    };
    let mut special = SpecialTokens {
        bos: id("bos")?,
        eos: id("eos")?,
        unknown: id("unk")?,
        padding: id("pad")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        ends: Vec::new(),
    };
    special.ends.extend(special.eos);
    let named = token_name(&tokenizer_config["eos_token"]).and_then(token);
    special.ends.extend(named);
    let files =
        [("config.json", config), ("config.json", text_config), ("generation_config.json", generation)];
    for (file, source) in files {
        special.ends.extend(ids(file, source).of("eos")?.into_iter().filter(known));
    }
    special.add_named_ends(vocab);
    Ok(special)
}

/// One template, or a list of named ones.
fn read_templates(value: &Value) -> Result<Vec<(String, String)>, TokenizerError> {
    let named =
        |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()));
    let templates = match value {
        Value::Null => Some(Vec::new()),
        Value::String(source) => Some(vec![("default".to_owned(), source.clone())]),
        Value::Array(entries) => entries.iter().map(named).collect(),
        _ => None,
    };
    templates.ok_or_else(|| TokenizerError::BadJson {
        file: "tokenizer_config.json",
        message: "`chat_template` is neither a text nor a list of names and templates".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_library_are_errors() {
        let message = |error: TokenizerError| error.to_string();
        let empty: &[u32] = &[];
        let panicked = contained(|| Ok(empty[1..].len())).map_err(message).unwrap_err();
        assert!(
            panicked.contains("library failed") && panicked.contains("range start index 1"),
            "{panicked}"
        );
        assert_eq!(contained::<()>(|| Err("no".into())), Err(TokenizerError::Encode("no".into())));
    }
}
