//! The families, one entry each.

use formats::Checkpoint;
use graph::Tensor;
use serde_json::Value;

use crate::decoder::{Config, Decoder};
use crate::error::ModelError;
use crate::families;
use crate::gguf_form::GgufForm;
use crate::keys::Keys;
use crate::step::Step;

/// A family's layers.
pub(crate) trait Family: Send + Sync {
    /// Records one layer: the residual stream `[rows, hidden]` in and out.
    fn layer(&self, step: &Step, layer: usize, x: Tensor) -> Tensor;

    /// Says in the keys of a GGUF file what the family reads there beside the decoder's axes, or refuses what cannot be said.
    fn write_gguf(&self, decoder: &Decoder, out: &mut GgufForm) -> Result<(), ModelError>;
}

/// Reads a family's hyper-parameters.
type Read = fn(&Config) -> Result<(Decoder, Box<dyn Family>), ModelError>;

/// A family in the registry.
struct Entry {
    name: &'static str,
    /// `model_type` of config.json.
    model_type: &'static str,
    /// The class in `architectures` of config.json.
    class: &'static str,
    /// `general.architecture` of GGUF. Several families may be written under one name; the first of them reads it.
    gguf: &'static str,
    read: Read,
}

const FAMILIES: &[Entry] = &[
    Entry {
        name: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        gguf: "llama",
        read: families::llama::read,
    },
    Entry {
        name: "mistral",
        model_type: "mistral",
        class: "MistralForCausalLM",
        gguf: "llama",
        read: families::llama::read_mistral,
    },
    Entry {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        gguf: "qwen2",
        read: families::qwen2::read,
    },
    Entry {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        gguf: "qwen3",
        read: families::qwen3::read,
    },
    Entry {
        name: "qwen3_moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        gguf: "qwen3moe",
        read: families::qwen3_moe::read,
    },
    Entry {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        gguf: "gemma3",
        read: families::gemma3::read,
    },
    Entry {
        name: "lfm2",
        model_type: "lfm2",
        class: "Lfm2ForCausalLM",
        gguf: "lfm2",
        read: families::lfm2::read,
    },
];

/// What GGUF calls a family.
pub(crate) fn written_as(name: &str) -> &'static str {
    FAMILIES.iter().find(|f| f.name == name).map_or("", |f| f.gguf)
}

/// Whether there is a family for the `model_type` of a configuration; an error that lists those there are.
pub(crate) fn knows(config: &Value) -> Result<(), ModelError> {
    match config["model_type"].as_str() {
        Some(name) if !FAMILIES.iter().any(|f| f.model_type == name) => Err(unknown("model_type", name)),
        _ => Ok(()),
    }
}

fn unknown(key: &str, found: &str) -> ModelError {
    let names = FAMILIES.iter().flat_map(|f| [f.model_type, f.gguf]);
    let names: std::collections::BTreeSet<_> = names.collect();
    let known = names.into_iter().collect::<Vec<_>>().join(", ");
    ModelError::UnknownArchitecture { found: format!("`{key}` = {found:?}"), known }
}

/// The family of a checkpoint: its name, the keys to read and their reader.
pub(crate) fn find(checkpoint: &Checkpoint) -> Result<(&'static str, Keys<'_>, Read), ModelError> {
    let key = if checkpoint.gguf().is_some() { "general.architecture" } else { "model_type" };
    let missing = || ModelError::MissingKey { key: key.to_owned(), expected: "the architecture's name" };
    let unknown = |found: &str| unknown(key, found);
    if let Some(metadata) = checkpoint.gguf() {
        let name: &str = metadata.get(key).ok().flatten().ok_or_else(missing)?;
        let family = FAMILIES.iter().find(|f| f.gguf == name);
        let family = family.ok_or_else(|| unknown(name))?;
        return Ok((family.name, Keys::gguf(metadata, name), family.read));
    }
    let config = checkpoint.config().and_then(Value::as_object).ok_or_else(missing)?;
    let name = config.get(key).and_then(Value::as_str).ok_or_else(missing)?;
    let family = FAMILIES.iter().find(|f| f.model_type == name).ok_or_else(|| unknown(name))?;
    let keys = Keys::hf(config);
    classes_agree(&keys, family)?;
    Ok((family.name, keys, family.read))
}

/// The same `model_type` names classifiers and embedders, whose answers are not next-token logits; and a class of another
/// family says that one of the two keys is wrong. The first Llama files wrote their class in other letters.
fn classes_agree(keys: &Keys, family: &Entry) -> Result<(), ModelError> {
    let key = ("architectures", "");
    let classes = keys.texts(key)?.unwrap_or_default();
    if classes.is_empty() || classes.iter().any(|c| c.eq_ignore_ascii_case(family.class)) {
        return Ok(());
    }
    let expected = format!("{} or absent, as `model_type` is {}", family.class, family.model_type);
    Err(keys.bad(key, classes.join(", "), &expected))
}
