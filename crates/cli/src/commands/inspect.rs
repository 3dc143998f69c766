//! `gristmill inspect`: what is in a model's files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use gristmill::parts::formats::gguf::{Array, Value as MetaValue};
use gristmill::{
    ByteSize, CacheSize, Checkpoint, Container, EngineError, Error, Model, ModelInfo, open_devices,
};
use serde_json::{Map, Value, json};

use crate::args::{CacheArgs, DeviceArgs, ModelArgs, StepArgs};
use crate::output::results;
use crate::resolve::{engine_options, precision_name};

/// Arrays of metadata longer than this are shown by type and length: vocabularies fill screens.
const LONG: usize = 8;

/// Describe a model: hyper-parameters, metadata, tensors, memory
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// Print a JSON object; metadata arrays of more than 8 elements appear as their type and length
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    step: StepArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let (path, checkpoint) = args.model.open()?;
    // A file whose architecture is not known is still worth a look.
    let model = Model::open(checkpoint.clone()).map_err(|e| e.to_string());
    let memory = match &model {
        Ok(model) => Some(memory(args, model.info(), &checkpoint)?),
        Err(_) => None,
    };
    let model = model.as_ref().map(Model::info).map_err(String::as_str);
    match args.json {
        true => print_json(&path, &checkpoint, model, memory),
        false => print_text(&path, &checkpoint, model, memory),
    }
}

/// What running the model would take.
struct Memory {
    precision: &'static str,
    weights: u64,
    /// Or why even one token does not fit.
    cache: Result<CacheSize, String>,
}

fn memory(args: &InspectArgs, info: &ModelInfo, checkpoint: &Checkpoint) -> Result<Memory> {
    let options = engine_options(&args.step, &args.cache);
    let devices = open_devices(&args.device.device, &args.device.options(1))?;
    let weights = checkpoint.file_bytes();
    let precision = options.precision_for(info);
    let cache = CacheSize::choose(info, &options, &devices, weights);
    let cache = match cache {
        // The model and the devices do not go together, which is no matter of memory.
        Err(error @ EngineError::Option { .. }) => return Err(Error::from(error).into()),
        other => other.map_err(|e| e.to_string()),
    };
    Ok(Memory { precision: precision_name(precision), weights, cache })
}

fn container(checkpoint: &Checkpoint) -> &'static str {
    match checkpoint.container() {
        Container::Gguf => "GGUF",
        Container::HuggingFace => "Hugging Face folder",
    }
}

/// Stored bytes by element type.
fn types(checkpoint: &Checkpoint) -> BTreeMap<&str, (usize, u64)> {
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for t in checkpoint.tensors() {
        let entry = types.entry(t.type_name).or_default();
        *entry = (entry.0 + 1, entry.1 + t.bytes as u64);
    }
    types
}

fn print_text(
    path: &Path,
    checkpoint: &Checkpoint,
    model: Result<&ModelInfo, &str>,
    memory: Option<Memory>,
) -> Result<()> {
    let mut out = std::io::BufWriter::new(results());
    writeln!(out, "file          {}", path.display())?;
    writeln!(out, "container     {}, {}", container(checkpoint), ByteSize(checkpoint.file_bytes()))?;
    match model {
        Ok(info) => describe(&mut out, info)?,
        Err(problem) => writeln!(out, "model         cannot be run: {problem}")?,
    }
    if let Some(memory) = memory {
        writeln!(out, "\nmemory ({})", memory.precision)?;
        writeln!(out, "  weights     {}", ByteSize(memory.weights))?;
        match memory.cache {
            Ok(size) => {
                writeln!(
                    out,
                    "  cache       {} for a context of {} tokens",
                    ByteSize(size.bytes()),
                    size.context
                )?;
                writeln!(out, "  per token   {}", ByteSize(size.bytes_per_token))?;
                writeln!(out, "  state       {}", ByteSize(size.bytes_per_slot))?;
            }
            Err(problem) => writeln!(out, "  cache       {problem}")?,
        }
    }
    writeln!(out, "\nmetadata")?;
    match checkpoint.gguf() {
        Some(metadata) => {
            for (key, value) in metadata.iter() {
                let shown = match value {
                    MetaValue::Array(array) if array.len() > LONG => {
                        format!("[{} x {}]", array.len(), array.type_name())
                    }
                    MetaValue::String(text) => cut(&one_line(text)),
                    other => to_json(other).to_string(),
                };
                writeln!(out, "  {key} = {shown}")?;
            }
        }
        None => {
            for (key, value) in checkpoint.config().and_then(Value::as_object).into_iter().flatten() {
                writeln!(out, "  {key} = {}", cut(&value.to_string()))?;
            }
        }
    }
    writeln!(out, "\ntypes")?;
    for (name, (tensors, size)) in types(checkpoint) {
        writeln!(out, "  {name:<8} {tensors:>5} tensors  {:>11}", ByteSize(size))?;
    }
    writeln!(out, "\ntensors")?;
    for t in checkpoint.tensors() {
        let note = if t.dtype.is_none() { "  (type not supported)" } else { "" };
        writeln!(
            out,
            "  {:<40} {:<6} {:<18} {:>11}{note}",
            t.name,
            t.type_name,
            shape(t.shape),
            ByteSize(t.bytes as u64)
        )?;
    }
    out.flush()?;
    Ok(())
}

fn describe(out: &mut impl Write, info: &ModelInfo) -> Result<()> {
    if !info.name.is_empty() {
        writeln!(out, "name          {}", info.name)?;
    }
    writeln!(out, "architecture  {}", info.architecture)?;
    writeln!(out, "parameters    {}", info.parameters)?;
    writeln!(out, "layers        {} of width {}", info.layers, info.hidden)?;
    writeln!(out, "vocabulary    {}", info.vocab)?;
    writeln!(out, "context       {} tokens trained", info.context)?;
    if let Some(limit) = info.position_limit {
        writeln!(
            out,
            "              {limit} tokens at most: its rotary scaling beyond that is not supported"
        )?;
    }
    let mut windows: BTreeMap<Option<usize>, usize> = BTreeMap::new();
    for kv in &info.kv {
        *windows.entry(kv.window).or_default() += 1;
    }
    for (window, layers) in windows {
        match window {
            None => writeln!(out, "attention     {layers} layers over the whole context")?,
            Some(window) => writeln!(out, "attention     {layers} layers over the last {window} tokens")?,
        }
    }
    if info.recurrent() {
        writeln!(out, "recurrent     {} layers", info.rings.len())?;
    }
    Ok(())
}

fn print_json(
    path: &Path,
    checkpoint: &Checkpoint,
    model: Result<&ModelInfo, &str>,
    memory: Option<Memory>,
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
    let types: Map<String, Value> = types(checkpoint)
        .into_iter()
        .map(|(name, (tensors, bytes))| (name.to_owned(), json!({ "tensors": tensors, "bytes": bytes })))
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
        "model": info,
        "problem": problem,
        "memory": memory,
        "metadata": metadata,
        "types": types,
        "tensors": tensors,
    });
    let mut out = std::io::BufWriter::new(results());
    serde_json::to_writer_pretty(&mut out, &all)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
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

fn to_json(value: &MetaValue) -> Value {
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

/// The number with the fewest digits that is this f32: JSON numbers are f64, where 0.1f32 has sixteen.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The text without line breaks and other control characters.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// A long text, cut to a line.
fn cut(text: &str) -> String {
    const LINE: usize = 80;
    match text.char_indices().nth(LINE) {
        Some((at, _)) => format!("{}... ({} characters)", &text[..at], text.chars().count()),
        None => text.to_owned(),
    }
}

fn shape(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_say_how_long_they_are() {
        let long = MetaValue::Array(Array::U32((0..9).collect()));
        assert_eq!(to_json(&long), json!({ "type": "u32", "length": 9 }));
        assert_eq!(to_json(&MetaValue::Array(Array::U32(vec![1, 2]))), json!([1, 2]));
        assert_eq!(to_json(&MetaValue::F32(1e-5)), json!(1e-5));
        assert_eq!(one_line("it's\n\tso"), "it's\\n\\tso");
        assert_eq!(cut("short"), "short");
        assert!(cut(&"é".repeat(200)).ends_with("... (200 characters)"));
    }
}
