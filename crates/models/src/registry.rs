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

/// Name, `model_type` of config.json, `general.architecture` of GGUF (empty where there is none), reader.
type Line = (&'static str, &'static str, &'static str, Read);

const FAMILIES: &[Line] = &[
    ("llama", "llama", "llama", families::llama::read),
    ("mistral", "mistral", "", families::llama::read_mistral),
    ("qwen2", "qwen2", "qwen2", families::qwen2::read),
    ("qwen3", "qwen3", "qwen3", families::qwen3::read),
    ("qwen3_moe", "qwen3_moe", "qwen3moe", families::qwen3_moe::read),
    ("gemma3", "gemma3_text", "gemma3", families::gemma3::read),
    ("lfm2", "lfm2", "lfm2", families::lfm2::read),
];

/// The family of a checkpoint: its name, the keys to read and their reader.
pub(crate) fn find(checkpoint: &Checkpoint) -> Result<(&'static str, Keys<'_>, Read), ModelError> {
    let unknown = |found: String| {
        let names = FAMILIES.iter().flat_map(|f| [f.1, f.2]).filter(|n| !n.is_empty());
        let names: std::collections::BTreeSet<_> = names.collect();
        let known = names.into_iter().collect::<Vec<_>>().join(", ");
        ModelError::UnknownArchitecture { found, known }
    };
    let key = if checkpoint.gguf().is_some() { "general.architecture" } else { "model_type" };
    let missing = || ModelError::MissingKey { key: key.to_owned(), expected: "the architecture's name" };
    if let Some(metadata) = checkpoint.gguf() {
        let name: &str = metadata.get(key).ok().flatten().ok_or_else(missing)?;
        let line = FAMILIES.iter().find(|f| f.2 == name && !name.is_empty());
        let line = line.ok_or_else(|| unknown(format!("`{key}` = {name:?}")))?;
        return Ok((line.0, Keys::gguf(metadata, name), line.3));
    }
    let config = checkpoint.config().and_then(Value::as_object).ok_or_else(missing)?;
    let name = config.get(key).and_then(Value::as_str).ok_or_else(missing)?;
    let line = FAMILIES.iter().find(|f| f.1 == name && !name.is_empty());
    let line = line.ok_or_else(|| unknown(format!("`{key}` = {name:?}")))?;
    // The same `model_type` names classifiers and embedders, whose answers are not next-token logits.
    if let Some(classes) = config.get("architectures").and_then(Value::as_array)
        && !classes.iter().any(|c| c.as_str().is_some_and(|c| c.ends_with("ForCausalLM")))
        && !classes.is_empty()
    {
        return Err(unknown(format!("`architectures` = {}", Value::from(classes.clone()))));
    }
    Ok((line.0, Keys::hf(config), line.3))
}
