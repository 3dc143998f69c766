//! `gristmill synth`: a model of a known shape with random weights, to measure speed and memory without a download.

mod fill;
mod shapes;
mod vocab;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::Args;
use clap::builder::PossibleValuesParser;
use gristmill::ByteSize;
use gristmill::parts::formats::gguf::{GgmlType, GgufWriter};
use gristmill::parts::tensor::DType;

use crate::args::{ThreadArgs, dtype, whole, within};
use crate::error::Usage;
use crate::output::note;
use crate::pieces::{self, Piece};

use fill::{Content, Fill, PART};
use shapes::{SHAPES, Shape, Tensor};

/// Write a model of a known shape with random weights
///
/// The same shape, type and seed give the same file. All matrices are of one type, norms are F32. The tokenizer has a
/// token for every byte and no merges; the rest of the vocabulary is there to make the head as large as the real one.
#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// Shape of the model
    #[arg(long, value_name = "SHAPE", value_parser = PossibleValuesParser::new(SHAPES.iter().map(|s| s.name)))]
    shape: String,
    /// Type of all matrices, in any case, as in `Q4_0`, `Q4_K`, `BF16`
    #[arg(long, value_name = "TYPE", value_parser = quant)]
    quant: DType,
    /// Write so many layers instead of the shape's own number
    #[arg(long, value_name = "N", value_parser = layers)]
    layers: Option<usize>,
    /// Another seed is another model
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>("--seed 1"))]
    seed: u64,
    /// The file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[command(flatten)]
    threads: ThreadArgs,
}

fn layers(text: &str) -> Result<usize, String> {
    within(text, 1, 1000)
}

fn quant(text: &str) -> Result<DType, String> {
    dtype(text, |d| GgmlType::try_from(d).is_ok())
}

/// Runs the command.
pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let shape = SHAPES.iter().find(|s| s.name == args.shape);
    let shape = shape.ok_or_else(|| Usage::error(format!("there is no shape `{}`", args.shape)))?;
    let shape = &shape.of_layers(args.layers);
    let tensors = shape.tensors(args.quant);
    let blocks = args.quant.block_len();
    if let Some((name, dims, _)) = tensors.iter().find(|(_, dims, c)| {
        matches!(c, Content::Matrix(_)) && !dims.last().is_some_and(|k| k.is_multiple_of(blocks))
    }) {
        return Err(Usage::error(format!(
            "{} cannot be {}: rows of {name} have {} elements, which are no whole blocks of {blocks}",
            shape.name,
            args.quant,
            dims.last().unwrap_or(&0),
        )));
    }
    let start = Instant::now();
    let len = write(&args.out, shape, &tensors, args.seed, args.threads.count())?;
    let seconds = start.elapsed().as_secs_f64();
    note(format_args!(
        "{}: {} in {seconds:.1} s ({:.2} GB/s)",
        args.out.display(),
        ByteSize(len),
        len as f64 / 1e9 / seconds
    ));
    Ok(())
}

/// A part of a tensor.
struct Part {
    tensor: usize,
    first_block: usize,
    len: usize,
}

/// Bytes of a piece, about: it is made and written while it is in a core's cache.
const PIECE: usize = 1 << 20;

/// Writes the file; gives its length.
fn write(path: &Path, shape: &Shape, tensors: &[Tensor], seed: u64, threads: usize) -> Result<u64> {
    let mut writer = GgufWriter::new();
    shape.metadata(&mut writer);
    for (name, dims, content) in tensors {
        let stored = GgmlType::try_from(content.dtype());
        writer.declare(name, stored.map_err(|d| anyhow!("no file holds {d}"))?, dims)?;
    }
    let head = writer.head()?;
    let mut fills = vec![];
    let mut parts = vec![];
    for (tensor, ((_, dims, content), place)) in tensors.iter().zip(&head.places).enumerate() {
        fills.push(Fill::new(seed, tensor, content, dims.last().copied().unwrap_or(1)));
        let block = content.dtype().block_bytes();
        let step = (PIECE / block).next_multiple_of(PART);
        let blocks = (place.end - place.start) as usize / block;
        parts.extend((0..blocks).step_by(step).map(|first_block| Piece {
            at: place.start + (first_block * block) as u64,
            what: Part { tensor, first_block, len: step.min(blocks - first_block) * block },
        }));
    }
    pieces::write(path, &head, &parts, threads, |part, buffer| {
        buffer.resize(part.len, 0);
        fills[part.tensor].fill(part.first_block, buffer);
        Ok(())
    })?;
    Ok(head.len)
}
