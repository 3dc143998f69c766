//! `gristmill synth`: a model of a known shape with random weights, to measure speed and memory without a download.

mod fill;
mod shapes;
mod vocab;

use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use gristmill::ByteSize;
use gristmill::parts::formats::gguf::{GgmlType, GgufWriter};
use gristmill::parts::tensor::DType;
use tempfile::NamedTempFile;

use crate::args::ThreadArgs;
use crate::error::Usage;
use crate::output::{byte_bar, note};
use crate::whole::write_whole;

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
    /// Type of all matrices, as in `q4_0`, `q4_k`, `bf16`
    #[arg(long, value_name = "TYPE", value_parser = quant)]
    quant: DType,
    /// Another seed is another model
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    #[command(flatten)]
    threads: ThreadArgs,
}

fn quant(text: &str) -> Result<DType, String> {
    let storable = |d: &DType| GgmlType::try_from(*d).is_ok();
    let found = DType::ALL.into_iter().filter(storable).find(|d| d.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| {
        let names: Vec<_> =
            DType::ALL.iter().filter(|d| storable(d)).map(|d| d.name().to_lowercase()).collect();
        format!("is none of {}", names.join(", "))
    })
}

/// Runs the command.
pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let shape = SHAPES.iter().find(|s| s.name == args.shape);
    let shape = shape.ok_or_else(|| Usage::error(format!("there is no shape `{}`", args.shape)))?;
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
    let threads = args.threads.threads.or(std::thread::available_parallelism().ok().map(usize::from));
    // Half a file would be read as a model of zeros.
    let len = write_whole(&args.out, |file| write(file, shape, &tensors, args.seed, threads.unwrap_or(1)))?;
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
struct Piece {
    tensor: usize,
    first_block: usize,
    at: u64,
    len: usize,
}

/// Bytes of a piece, about: it is made and written while it is in a core's cache.
const PIECE: usize = 1 << 20;

/// Writes the file; gives its length.
fn write(
    file: &mut NamedTempFile,
    shape: &Shape,
    tensors: &[Tensor],
    seed: u64,
    threads: usize,
) -> Result<u64> {
    let mut writer = GgufWriter::new();
    shape.metadata(&mut writer);
    for (name, dims, content) in tensors {
        let stored = GgmlType::try_from(content.dtype());
        writer.declare(name, stored.map_err(|d| anyhow!("no file holds {d}"))?, dims)?;
    }
    let head = writer.head()?;
    file.write_all(&head.bytes)?;
    file.as_file().set_len(head.len)?;

    let mut fills = vec![];
    let mut pieces = vec![];
    for (tensor, ((_, dims, content), place)) in tensors.iter().zip(&head.places).enumerate() {
        fills.push(Fill::new(seed, tensor, content, dims.last().copied().unwrap_or(1)));
        let block = content.dtype().block_bytes();
        let step = (PIECE / block).next_multiple_of(PART);
        let blocks = (place.end - place.start) as usize / block;
        pieces.extend((0..blocks).step_by(step).map(|first_block| Piece {
            tensor,
            first_block,
            at: place.start + (first_block * block) as u64,
            len: step.min(blocks - first_block) * block,
        }));
    }
    let bar = byte_bar("writing");
    bar.set_length(head.len);
    let next = AtomicUsize::new(0);
    let shared = &*file;
    let work = || -> Result<()> {
        // Its own file, for its own position.
        let mut file = shared.reopen()?;
        let mut buffer = vec![];
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            buffer.resize(piece.len, 0);
            fills[piece.tensor].fill(piece.first_block, &mut buffer);
            file.seek(SeekFrom::Start(piece.at))?;
            file.write_all(&buffer)?;
            bar.inc(piece.len as u64);
        }
        Ok(())
    };
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a thread panicked")));
        // Every thread is waited for, whatever the others say.
        let ended: Vec<Result<()>> = ended.collect();
        ended.into_iter().collect::<Result<()>>()
    });
    bar.finish_and_clear();
    failed.map(|()| head.len)
}
