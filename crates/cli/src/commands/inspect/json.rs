//! What `inspect --json` prints.

use std::path::Path;

use anyhow::Result;
use gristmill::parts::formats::gguf::{Array, Value as MetaValue};
use gristmill::parts::graph::chart::Chart;
use gristmill::{Checkpoint, ModelInfo};
use serde_json::{Map, Value, json};

use super::{LONG, Memory, container, types};
use crate::output::{results, shortest};

/// Prints the object of `--json`.
pub(super) fn print_json(
    path: &Path,
    checkpoint: &Checkpoint,
    model: Result<&ModelInfo, &str>,
    memory: Option<Memory>,
    graph: Option<&Chart>,
) -> Result<()> {
    let metadata = match checkpoint.gguf() {
        Some(metadata) => Value::Object(metadata.iter().map(|(k, v)| (k.to_owned(), to_json(v))).collect()),
        None => checkpoint.config().cloned().unwrap_or_default(),
    };
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .map(|t| {
            json!({ "name": t.name, "type": t.type_name, "supported": t.dtype.is_some(), "shape": t.shape, "bytes": t.bytes })
        })
        .collect();
    let files: Vec<Value> = checkpoint
        .files()
        .into_iter()
        .map(|file| json!({ "path": file.path.map(|p| p.display().to_string()), "tensors": file.tensors, "bytes": file.bytes }))
        .collect();
    let types: Map<String, Value> = types(checkpoint)
        .into_iter()
        .map(|(name, s)| {
            (name.to_owned(), json!({ "tensors": s.tensors, "elements": s.elements, "bytes": s.bytes }))
        })
        .collect();
    let (info, problem) = match model {
        Ok(info) => (Some(info_json(info)), None),
        Err(problem) => (None, Some(problem)),
    };
    let memory = memory.map(|m| {
        let (cache, problem) = match m.cache {
            Ok(size) => (Some(size), None),
            Err(problem) => (None, Some(problem)),
        };
        json!({
            "precision": m.precision,
            "kv_type": m.kv_type.name(),
            "weight_bytes": m.weights,
            "context": cache.map(|c| c.context),
            "cache_bytes": cache.map(|c| c.bytes()),
            "bytes_per_token": cache.map(|c| c.bytes_per_token),
            "bytes_per_state": cache.map(|c| c.bytes_per_slot),
            "problem": problem,
        })
    });
    let all = json!({
        "path": path.display().to_string(),
        "container": container(checkpoint),
        "file_bytes": checkpoint.file_bytes(),
        "files": files,
        "model": info,
        "problem": problem,
        "memory": memory,
        "metadata": metadata,
        "types": types,
        "tensors": tensors,
        "graph": graph.map(super::graph::json),
    });
    results().json(&all)
}

fn info_json(info: &ModelInfo) -> Value {
    json!({
        "name": info.name,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "layers": info.layers,
        "hidden": info.hidden,
        "vocab": info.vocab,
        "context": info.context,
        "position_limit": info.position_limit,
        "kv_layers": info.kv.len(),
        "recurrent_layers": info.rings.len(),
        "tied_embedding": info.tied_embedding,
        "quantised": info.quantised,
    })
}

/// A value of the metadata; long arrays by type and length.
pub(super) fn to_json(value: &MetaValue) -> Value {
    match value {
        MetaValue::U8(x) => json!(x),
        MetaValue::I8(x) => json!(x),
        MetaValue::U16(x) => json!(x),
        MetaValue::I16(x) => json!(x),
        MetaValue::U32(x) => json!(x),
        MetaValue::I32(x) => json!(x),
        MetaValue::U64(x) => json!(x),
        MetaValue::I64(x) => json!(x),
        MetaValue::F32(x) => json!(shortest(*x)),
        MetaValue::F64(x) => json!(x),
        MetaValue::Bool(x) => json!(x),
        MetaValue::String(x) => json!(x),
        MetaValue::Array(array) => array_to_json(array),
    }
}

fn array_to_json(array: &Array) -> Value {
    if array.len() > LONG {
        return json!({ "type": array.type_name(), "length": array.len() });
    }
    match array {
        Array::U8(x) => json!(x),
        Array::I8(x) => json!(x),
        Array::U16(x) => json!(x),
        Array::I16(x) => json!(x),
        Array::U32(x) => json!(x),
        Array::I32(x) => json!(x),
        Array::U64(x) => json!(x),
        Array::I64(x) => json!(x),
        Array::F32(x) => x.iter().map(|x| json!(shortest(*x))).collect(),
        Array::F64(x) => json!(x),
        Array::Bool(x) => json!(x),
        Array::String(x) => x.iter().map(Value::from).collect(),
        Array::Array(x) => x.iter().map(array_to_json).collect(),
    }
}
