//! Hyper-parameters of either container, each read at most once and none left over.

use std::cell::RefCell;
use std::collections::HashSet;

use formats::gguf::{Array, GgufMetadata, Value as Meta};
use serde_json::{Map, Value};

use crate::error::ModelError;

/// Keys of config.json that say nothing about the computation of a text decoder.
const HARMLESS: &[&str] = &[
    "architectures",
    "model_type",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "auto_map",
    "initializer_range",
    "use_cache",
    "cache_implementation",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "decoder_start_token_id",
    "attention_dropout",
    "hidden_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "dropout",
    // The partition of the weights while training; the answer differs in rounding alone.
    "pretraining_tp",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_return_dict",
    "torchscript",
    "use_bfloat16",
    "chunk_size_feed_forward",
    "gradient_checkpointing",
    "tokenizer_class",
    "prefix",
    "finetuning_task",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    // Settings of generation, which config.json of older versions carries.
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
];

/// Keys that are harmless while they hold one of these values.
const NEUTRAL: &[(&str, &[Neutral])] = &[
    ("is_encoder_decoder", &[Neutral::Bool(false)]),
    ("is_decoder", &[Neutral::Bool(false), Neutral::Bool(true)]),
    ("add_cross_attention", &[Neutral::Bool(false)]),
    ("cross_attention_hidden_size", &[]),
    ("tie_encoder_decoder", &[Neutral::Bool(false)]),
    ("pruned_heads", &[Neutral::Empty]),
    ("quantization_config", &[]),
    ("tf_legacy_loss", &[Neutral::Bool(false)]),
    ("partial_rotary_factor", &[Neutral::One]),
    ("attention_bias", &[Neutral::Bool(false)]),
    ("mlp_bias", &[Neutral::Bool(false)]),
    ("use_sliding_window", &[Neutral::Bool(false)]),
    ("use_mrope", &[Neutral::Bool(false)]),
    ("rope_interleaved", &[Neutral::Bool(false)]),
    ("is_llama_config", &[Neutral::Bool(true)]),
    ("per_layer_config", &[Neutral::Empty]),
];

enum Neutral {
    Bool(bool),
    One,
    Empty,
}

impl Neutral {
    fn is(&self, value: &Value) -> bool {
        match self {
            Neutral::Bool(b) => value == b,
            Neutral::One => value.as_f64() == Some(1.0),
            Neutral::Empty => {
                value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
            }
        }
    }
}

/// What a number may be. NaN lies in no range.
pub(crate) struct Range {
    least: f64,
    most: f64,
    /// The range in a message.
    words: &'static str,
}

impl Range {
    pub(crate) const fn new(least: f64, most: f64, words: &'static str) -> Range {
        Range { least, most, words }
    }

    pub(crate) fn holds(&self, x: f64) -> bool {
        (self.least..=self.most).contains(&x)
    }
}

/// Larger counts and extents than this are refused, so that products of two stay far from overflow.
const LARGEST: u64 = i32::MAX as u64;

/// Looks hyper-parameters up by the key of either container and remembers which were asked for.
///
/// A JSON null counts as absent, except in [`Keys::nullable`].
pub(crate) struct Keys<'a> {
    source: Source<'a>,
    used: RefCell<HashSet<String>>,
}

enum Source<'a> {
    /// An object and where it stands in config.json, with a trailing dot.
    Hf(&'a Map<String, Value>, String),
    /// The metadata and the architecture's prefix, with a trailing dot.
    Gguf(&'a GgufMetadata, String),
}

/// The key of config.json and the one of GGUF after the architecture's prefix; empty where a container has none.
pub(crate) type Key = (&'static str, &'static str);

impl<'a> Keys<'a> {
    pub(crate) fn hf(config: &'a Map<String, Value>) -> Keys<'a> {
        Keys { source: Source::Hf(config, String::new()), used: RefCell::default() }
    }

    /// The keys of an object within config.json.
    pub(crate) fn within(config: &'a Map<String, Value>, path: &str) -> Keys<'a> {
        Keys { source: Source::Hf(config, format!("{path}.")), used: RefCell::default() }
    }

    pub(crate) fn gguf(metadata: &'a GgufMetadata, architecture: &str) -> Keys<'a> {
        Keys { source: Source::Gguf(metadata, format!("{architecture}.")), used: RefCell::default() }
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.source, Source::Gguf(..))
    }

    /// The full name of a key in this container.
    fn name(&self, key: Key) -> String {
        match &self.source {
            Source::Hf(_, path) => format!("{path}{}", key.0),
            Source::Gguf(_, prefix) => format!("{prefix}{}", key.1),
        }
    }

    /// The value as JSON; null where the file says null.
    fn raw(&self, key: Key) -> Option<Value> {
        let (own, value) = match &self.source {
            Source::Hf(map, _) => (key.0, map.get(key.0).cloned()),
            Source::Gguf(metadata, _) => (key.1, metadata.value(&self.name(key)).map(json)),
        };
        if own.is_empty() {
            return None;
        }
        self.used.borrow_mut().insert(own.to_owned());
        value
    }

    /// The value of a key of GGUF metadata that stands outside the architecture's prefix.
    pub(crate) fn outside(&self, key: &str) -> Option<Value> {
        match &self.source {
            Source::Hf(..) => None,
            Source::Gguf(metadata, _) => metadata.value(key).map(json),
        }
    }

    /// The value, if there is one.
    pub(crate) fn value(&self, key: Key) -> Option<Value> {
        self.raw(key).filter(|v| !v.is_null())
    }

    pub(crate) fn bad(&self, key: Key, found: impl std::fmt::Display, expected: &str) -> ModelError {
        ModelError::BadValue { key: self.name(key), found: found.to_string(), expected: expected.to_owned() }
    }

    pub(crate) fn unsupported(
        &self,
        key: Key,
        found: impl std::fmt::Display,
        implemented: &str,
    ) -> ModelError {
        let implemented = implemented.to_owned();
        ModelError::Unsupported { key: self.name(key), found: found.to_string(), implemented }
    }

    fn get<T>(
        &self,
        key: Key,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.value(key) {
            None => Ok(None),
            Some(v) => read(&v).map(Some).ok_or_else(|| self.bad(key, &v, expected)),
        }
    }

    /// A count or extent: a whole number from 1 on.
    pub(crate) fn count(&self, key: Key) -> Result<Option<usize>, ModelError> {
        self.get(key, "a whole number from 1 to 2147483647", |v| number(v).filter(|n| *n > 0))
    }

    /// A count that has no default.
    pub(crate) fn need(&self, key: Key) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| self.missing(key, "a whole number from 1 to 2147483647"))
    }

    pub(crate) fn missing(&self, key: Key, expected: &'static str) -> ModelError {
        ModelError::MissingKey { key: self.name(key), expected }
    }

    /// A whole number from 0 on.
    pub(crate) fn whole(&self, key: Key) -> Result<Option<usize>, ModelError> {
        self.get(key, "a whole number from 0 to 2147483647", number)
    }

    /// A count whose null means that there is none: `None` when absent, `Some(None)` when null. A 0 is refused: a window
    /// that sees nothing and no window at all are opposites, and files do not say which they mean.
    pub(crate) fn nullable(&self, key: Key) -> Result<Option<Option<usize>>, ModelError> {
        match self.raw(key) {
            None => Ok(None),
            Some(Value::Null) => Ok(Some(None)),
            Some(v) => {
                let expected = "a whole number from 1 to 2147483647, or null for none";
                let n = number(&v).filter(|n| *n > 0);
                Ok(Some(Some(n.ok_or_else(|| self.bad(key, &v, expected))?)))
            }
        }
    }

    /// A number of a range.
    pub(crate) fn within_range(&self, key: Key, range: &Range) -> Result<Option<f64>, ModelError> {
        self.get(key, range.words, |v| v.as_f64().filter(|x| range.holds(*x)))
    }

    pub(crate) fn flag(&self, key: Key) -> Result<Option<bool>, ModelError> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, key: Key) -> Result<Option<String>, ModelError> {
        self.get(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// A list of whole numbers.
    pub(crate) fn numbers(&self, key: Key) -> Result<Option<Vec<usize>>, ModelError> {
        self.get(key, "a list of whole numbers", |v| v.as_array()?.iter().map(number).collect())
    }

    /// A list of layers, of so many.
    pub(crate) fn layers(&self, key: Key, layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let list = self.numbers(key)?;
        match list.iter().flatten().find(|&&layer| layer >= layers) {
            Some(layer) => Err(self.bad(
                key,
                format!("a list with {layer}"),
                &format!("a list of numbers below {layers}"),
            )),
            None => Ok(list),
        }
    }

    pub(crate) fn texts(&self, key: Key) -> Result<Option<Vec<String>>, ModelError> {
        self.get(key, "a list of strings", |v| {
            v.as_array()?.iter().map(|s| s.as_str().map(str::to_owned)).collect()
        })
    }

    /// True when the file says null, which is not always the same as saying nothing.
    pub(crate) fn is_null(&self, key: Key) -> bool {
        self.raw(key).is_some_and(|v| v.is_null())
    }

    /// A key of which the code knows one meaning alone: absent, or this value.
    pub(crate) fn only(&self, key: Key, value: impl Into<Value>) -> Result<(), ModelError> {
        let value = value.into();
        match self.value(key) {
            Some(v) if v != value && v.as_f64().is_none_or(|x| Some(x) != value.as_f64()) => {
                Err(self.unsupported(key, v, &format!("{value} is")))
            }
            _ => Ok(()),
        }
    }

    /// A key whose only implemented meaning is that it is not set.
    pub(crate) fn never(&self, key: Key) -> Result<(), ModelError> {
        self.value(key).map_or(Ok(()), |v| Err(self.unsupported(key, v, "leaving it unset is")))
    }

    /// Marks keys of config.json that the reference code does not read.
    pub(crate) fn ignore(&self, keys: &[&str]) {
        self.used.borrow_mut().extend(keys.iter().map(|k| (*k).to_owned()));
    }

    /// The keys inside an object of config.json.
    pub(crate) fn object(&self, key: Key) -> Result<Option<Map<String, Value>>, ModelError> {
        self.get(key, "an object", |v| v.as_object().cloned())
    }

    /// Fails when a key is left that nothing has asked for.
    pub(crate) fn finish(self, architecture: &'static str) -> Result<(), ModelError> {
        let used = self.used.borrow();
        let mut keys = vec![];
        match &self.source {
            Source::Hf(map, path) => {
                for (key, value) in map.iter().filter(|(k, v)| !used.contains(*k) && !v.is_null()) {
                    if HARMLESS.contains(&key.as_str()) {
                        continue;
                    }
                    match NEUTRAL.iter().find(|(k, _)| k == key) {
                        Some((_, allowed)) if allowed.iter().any(|a| a.is(value)) => {}
                        _ => keys.push(format!("{path}{key} = {}", short(value))),
                    }
                }
            }
            Source::Gguf(metadata, prefix) => {
                let left = |k: &str| k.strip_prefix(prefix.as_str()).is_some_and(|own| !used.contains(own));
                let left = metadata.iter().filter(|(k, _)| left(k));
                keys.extend(left.map(|(k, v)| format!("{k} = {}", v.describe())));
            }
        }
        if keys.is_empty() { Ok(()) } else { Err(ModelError::UnknownKeys { architecture, keys }) }
    }
}

/// A whole number, also one written as `8.0`.
pub(crate) fn number(v: &Value) -> Option<usize> {
    let n = match v.as_u64() {
        Some(n) => n,
        None => v.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=LARGEST as f64).contains(x))? as u64,
    };
    (n <= LARGEST).then_some(n as usize)
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// A metadata value as JSON; numbers keep their value.
fn json(value: &Meta) -> Value {
    match value {
        Meta::U8(x) => (*x).into(),
        Meta::I8(x) => (*x).into(),
        Meta::U16(x) => (*x).into(),
        Meta::I16(x) => (*x).into(),
        Meta::U32(x) => (*x).into(),
        Meta::I32(x) => (*x).into(),
        Meta::U64(x) => (*x).into(),
        Meta::I64(x) => (*x).into(),
        Meta::F32(x) => float(*x),
        Meta::F64(x) => double(*x),
        Meta::Bool(x) => (*x).into(),
        Meta::String(x) => x.as_str().into(),
        Meta::Array(x) => array(x),
    }
}

/// The f64 nearest to the decimal that an f32 was written as: 1e-5, not 0.000009999999747378752. Configurations are
/// decimals, and both containers of a model must give the same numbers.
fn float(x: f32) -> Value {
    double(x.to_string().parse::<f64>().unwrap_or(f64::NAN))
}

/// JSON has no NaN and no infinities: they become text, which no number is read from. As null they would count as absent.
fn double(x: f64) -> Value {
    serde_json::Number::from_f64(x).map_or_else(|| Value::String(x.to_string()), Value::Number)
}

fn array(x: &Array) -> Value {
    match x {
        Array::U8(v) => v.iter().copied().collect(),
        Array::I8(v) => v.iter().copied().collect(),
        Array::U16(v) => v.iter().copied().collect(),
        Array::I16(v) => v.iter().copied().collect(),
        Array::U32(v) => v.iter().copied().collect(),
        Array::I32(v) => v.iter().copied().collect(),
        Array::U64(v) => v.iter().copied().collect(),
        Array::I64(v) => v.iter().copied().collect(),
        Array::F32(v) => v.iter().copied().map(float).collect(),
        Array::F64(v) => v.iter().copied().map(double).collect(),
        Array::Bool(v) => v.iter().copied().collect(),
        Array::String(v) => v.iter().collect(),
        Array::Array(v) => v.iter().map(array).collect(),
    }
}
