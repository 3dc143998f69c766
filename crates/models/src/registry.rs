//! The families, one line each.

use formats::Checkpoint;
use graph::Tensor;
use serde_json::Value;

use crate::decoder::{Config, Decoder};
use crate::error::ModelError;
use crate::families;
use crate::keys::Keys;
use crate::step::Step;

/// A family's layers.
pub(crate) trait Family: Send + Sync {
    /// Records one layer: the residual stream `[rows, hidden]` in and out.
    fn layer(&self, step: &Step, layer: usize, x: Tensor) -> Tensor;
}

/// Reads a family's hyper-parameters.
type Read = fn(&Config) -> Result<(Decoder, Box<dyn Family>), ModelError>;

/// Name, `model_type` of config.json, the class in its `architectures`, `general.architecture` of GGUF (empty where there
/// is none), reader.
type Line = (&'static str, &'static str, &'static str, &'static str, Read);

const FAMILIES: &[Line] = &[
    ("llama", "llama", "LlamaForCausalLM", "llama", families::llama::read),
    ("mistral", "mistral", "MistralForCausalLM", "", families::llama::read_mistral),
    ("qwen2", "qwen2", "Qwen2ForCausalLM", "qwen2", families::qwen2::read),
    ("qwen3", "qwen3", "Qwen3ForCausalLM", "qwen3", families::qwen3::read),
    ("qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe", families::qwen3_moe::read),
    ("gemma3", "gemma3_text", "Gemma3ForCausalLM", "gemma3", families::gemma3::read),
    ("lfm2", "lfm2", "Lfm2ForCausalLM", "lfm2", families::lfm2::read),
];

/// The family of a checkpoint: its name, the keys to read and their reader.
pub(crate) fn find(checkpoint: &Checkpoint) -> Result<(&'static str, Keys<'_>, Read), ModelError> {
    let key = if checkpoint.gguf().is_some() { "general.architecture" } else { "model_type" };
    let missing = || ModelError::MissingKey { key: key.to_owned(), expected: "the architecture's name" };
    let unknown = |found: &str| {
        let names = FAMILIES.iter().flat_map(|f| [f.1, f.3]).filter(|n| !n.is_empty());
        let names: std::collections::BTreeSet<_> = names.collect();
        let known = names.into_iter().collect::<Vec<_>>().join(", ");
        ModelError::UnknownArchitecture { found: format!("`{key}` = {found:?}"), known }
    };
    if let Some(metadata) = checkpoint.gguf() {
        let name: &str = metadata.get(key).ok().flatten().ok_or_else(missing)?;
        let line = FAMILIES.iter().find(|f| f.3 == name && !name.is_empty());
        let line = line.ok_or_else(|| unknown(name))?;
        return Ok((line.0, Keys::gguf(metadata, name), line.4));
    }
    let config = checkpoint.config().and_then(Value::as_object).ok_or_else(missing)?;
    let name = config.get(key).and_then(Value::as_str).ok_or_else(missing)?;
    let line = FAMILIES.iter().find(|f| f.1 == name).ok_or_else(|| unknown(name))?;
    let keys = Keys::hf(config);
    classes_agree(&keys, line.1, line.2)?;
    Ok((line.0, keys, line.4))
}

/// The same `model_type` names classifiers and embedders, whose answers are not next-token logits; and a class of another
/// family says that one of the two keys is wrong. The first Llama files wrote their class in other letters.
fn classes_agree(keys: &Keys, model_type: &str, class: &str) -> Result<(), ModelError> {
    let key = ("architectures", "");
    let classes = keys.texts(key)?.unwrap_or_default();
    if classes.is_empty() || classes.iter().any(|c| c.eq_ignore_ascii_case(class)) {
        return Ok(());
    }
    let expected = format!("{class} or absent, as `model_type` is {model_type}");
    Err(keys.bad(key, classes.join(", "), &expected))
}
