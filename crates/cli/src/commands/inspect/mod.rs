//! `gristmill inspect`: what is in a model's files.

mod graph;
mod json;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use gristmill::parts::formats::FileEntry;
use gristmill::parts::formats::gguf::Value as MetaValue;
use gristmill::{
    ByteSize, CacheSize, Checkpoint, Container, EngineError, Error, KvType, Model, ModelInfo, open_devices,
};
use serde_json::Value;

use self::graph::GraphForm;
use self::json::{print_json, to_json};
use crate::args::{CacheArgs, DeviceArgs, ModelArgs, StepArgs};
use crate::output::results;
use crate::resolve::{engine_options, precision_name, spare_inputs};

/// Arrays of metadata longer than this are shown by type and length: vocabularies fill screens.
const LONG: usize = 8;

/// Describe a model: hyper-parameters, memory, metadata, tensors, graph
///
/// Of memory it tells what running the model would take on --device with --precision, --kv-type and --context. The graph is
/// the one that the model is recorded as, before a device fuses its operations; layers that are alike are shown once.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// Print a JSON object, the graph included; metadata arrays of more than 8 elements appear as their type and length
    #[arg(long, conflicts_with = "graph")]
    json: bool,
    /// Print the recorded graph instead
    #[arg(long, value_name = "FORM")]
    graph: Option<GraphForm>,
    /// Write the graph to this file instead of standard output
    #[arg(short, long, value_name = "FILE", requires = "graph")]
    output: Option<PathBuf>,
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
    if let Some(form) = args.graph {
        return match &model {
            Ok(model) => {
                if let Some(output) = &args.output {
                    spare_inputs(output, &checkpoint, None)?;
                }
                graph::print(&graph::chart(model, args)?, form, args.output.as_deref())
            }
            Err(problem) => bail!("{}: a model that cannot be run has no graph: {problem}", path.display()),
        };
    }
    let memory = match &model {
        Ok(model) => Some(memory(args, model.info(), &checkpoint)?),
        Err(_) => None,
    };
    if args.json {
        let graph = model.as_ref().ok().map(|model| graph::chart(model, args)).transpose()?;
        let model = model.as_ref().map(Model::info).map_err(String::as_str);
        print_json(&path, &checkpoint, model, memory, graph.as_ref())
    } else {
        print_text(&path, &checkpoint, model.as_ref().map(Model::info).map_err(String::as_str), memory)
    }
}

/// What running the model would take.
struct Memory {
    precision: &'static str,
    kv_type: KvType,
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
    let kv_type = options.kv_type_for(info);
    Ok(Memory { precision: precision_name(precision), kv_type, weights, cache })
}

fn container(checkpoint: &Checkpoint) -> &'static str {
    match checkpoint.container() {
        Container::Gguf => "GGUF",
        Container::HuggingFace => "Hugging Face folder",
    }
}

/// What is stored in one element type.
#[derive(Clone, Copy, Default)]
struct Stored {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

/// What is stored, by element type.
fn types(checkpoint: &Checkpoint) -> BTreeMap<&str, Stored> {
    let mut types: BTreeMap<&str, Stored> = BTreeMap::new();
    for t in checkpoint.tensors() {
        let stored = types.entry(t.type_name).or_default();
        stored.tensors += 1;
        stored.elements += t.shape.iter().map(|n| *n as u64).product::<u64>();
        stored.bytes += t.bytes as u64;
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
    let files = checkpoint.files();
    let shards = if files.len() > 1 { format!(" in {} shards", files.len()) } else { String::new() };
    writeln!(out, "container     {}{shards}, {}", container(checkpoint), ByteSize(checkpoint.file_bytes()))?;
    match model {
        Ok(info) => describe(&mut out, info)?,
        Err(problem) => writeln!(out, "model         cannot be run: {problem}")?,
    }
    if let Some(memory) = memory {
        writeln!(out, "\nmemory ({}, KV cache of {})", memory.precision, memory.kv_type)?;
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
    if files.len() > 1 {
        writeln!(out, "\nshards")?;
        for FileEntry { path, tensors, bytes } in files {
            let name = path.and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            writeln!(out, "  {name:<40} {tensors:>5} tensors  {:>11}", ByteSize(bytes))?;
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
    for (name, Stored { tensors, elements, bytes }) in types(checkpoint) {
        let bits = 8.0 * bytes as f64 / elements.max(1) as f64;
        let size = ByteSize(bytes);
        writeln!(
            out,
            "  {name:<8} {tensors:>5} tensors  {elements:>13} weights  {size:>11}  {bits:>5.2} bits each"
        )?;
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
        writeln!(out, "name          {}", one_line(&info.name))?;
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
    use gristmill::parts::formats::gguf::Array;
    use serde_json::json;

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
