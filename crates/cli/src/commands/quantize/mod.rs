//! `gristmill quantize`: a model file in fewer bits.

mod importance;
mod input;
mod policy;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use gristmill::ByteSize;
use gristmill::parts::formats::gguf::{GgmlType, GgufMetadata, GgufWriter, Value};
use gristmill::parts::models::GgufTensor;
use gristmill::parts::tensor::encode::{self, EncodeError};
use gristmill::parts::tensor::{DType, blocks};

use crate::args::{ThreadArgs, dtype};
use crate::error::Usage;
use crate::output::{note, warn};
use crate::pieces::{self, Piece};
use crate::resolve::{model_path, spare_inputs};

use importance::Importance;
use input::Input;
use policy::{Facts, MIXES, Mix, fitting, may_change};

/// Write a GGUF model in fewer bits, or in more, or from a Hugging Face folder
///
/// TYPE names a mix: a base type, and rules that give more bits to the matrices that errors hurt most. The rules are those
/// of llama.cpp, which reads the files. Norms, biases and other small tensors stay as they are. F16, BF16 and F32 also undo
/// a quantisation, as far as its values allow.
///
/// The new file is written beside OUT and renamed when it is whole.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// GGUF file to read, or a Hugging Face folder, or what `pull` takes
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Mix of types, in any case
    #[arg(value_name = "TYPE", ignore_case = true, value_parser = PossibleValuesParser::new(MIXES.iter().map(|m| m.name)))]
    mix: String,
    /// Importance matrix: what errors in each column cost, as llama.cpp's imatrix measures it
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Type for the tensors whose name has PATTERN in it, where `*` is any text; the first that fits counts
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = tensor_type)]
    tensor_type: Vec<(String, DType)>,
    /// Give all matrices the base type, without the rules of the mix
    #[arg(long)]
    pure: bool,
    /// Write over OUT where it is there already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    threads: ThreadArgs,
}

fn tensor_type(text: &str) -> Result<(String, DType), String> {
    let (pattern, name) = text.split_once('=').ok_or("is not PATTERN=TYPE, as in `ffn_down=Q6_K`")?;
    if pattern.is_empty() {
        return Err("has no PATTERN before the `=`".into());
    }
    Ok((pattern.to_owned(), dtype(name, encode::has_encoder)?))
}

/// Whether a name has the pattern in it; `*` stands for any text.
fn has(name: &str, pattern: &str) -> bool {
    let mut rest = name;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// What becomes of a tensor.
struct Job<'a> {
    input: &'a Input,
    tensor: &'a GgufTensor,
    to: DType,
    importance: Option<&'a [f32]>,
    /// Pieces that are not done.
    left: AtomicUsize,
}

/// Some rows of a tensor.
struct Rows {
    job: usize,
    first: usize,
    count: usize,
}

/// Elements that a thread decodes at a time, about.
const PIECE: usize = 1 << 18;

/// Runs the command.
pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let mix =
        Mix::named(&args.mix).ok_or_else(|| Usage::error(format!("there is no type `{}`", args.mix)))?;
    let input = Input::open(&model_path(&args.input, None)?)?;
    spare_inputs(&args.output, input.checkpoint(), args.imatrix.as_deref())?;
    if args.output.is_file() && !args.force {
        let output = args.output.display();
        return Err(Usage::error(format!(
            "{output} is there already: give another name, or --force to write over it"
        )));
    }
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    let facts =
        Facts::of(&input.metadata, input.tensors.iter().map(|t| t.name.as_str()), importance.is_some());
    let jobs = jobs(args, mix, &input, &facts, importance.as_ref())?;
    remark(&jobs, importance.as_ref());

    let start = Instant::now();
    let writer = header(args, mix, &input.metadata, &jobs)?;
    let head = writer.head()?;
    let mut pieces = vec![];
    for (index, (job, place)) in jobs.iter().zip(&head.places).enumerate() {
        let [experts, rows, k] = extent(&job.tensor.shape);
        let rows = experts * rows;
        let row_bytes = job.to.bytes_for(k).context("rows of whole blocks")? as u64;
        let step = (PIECE / k.max(1)).max(1);
        let parts = (0..rows).step_by(step).map(|first| Piece {
            at: place.start + first as u64 * row_bytes,
            what: Rows { job: index, first, count: step.min(rows - first) },
        });
        pieces.extend(parts);
        job.left.store(rows.div_ceil(step), Ordering::Relaxed);
    }
    pieces::write(&args.output, &head, &pieces, args.threads.count(), |rows, out| {
        let job = &jobs[rows.job];
        job.make(rows, out)?;
        if job.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            job.input.release(job.tensor);
        }
        Ok(())
    })?;
    let weights: usize = jobs.iter().map(|job| job.tensor.shape.iter().product::<usize>()).sum();
    note(format_args!(
        "{}: {} in place of {}, {:.2} bits a weight, in {:.1} s",
        args.output.display(),
        ByteSize(head.len),
        ByteSize(input.bytes),
        8.0 * head.len as f64 / weights.max(1) as f64,
        start.elapsed().as_secs_f64(),
    ));
    if head.len > input.bytes {
        warn(format_args!(
            "{} is larger than what it was made of: {} takes more bits for a weight than were there, and gives back nothing \
             that was lost",
            args.output.display(),
            mix.name
        ));
    }
    Ok(())
}

/// Experts (1 for a plain matrix), rows of each, and their length.
fn extent(shape: &[usize]) -> [usize; 3] {
    let mut dims = shape.iter().rev().copied();
    let (k, rows) = (dims.next().unwrap_or(1), dims.next().unwrap_or(1));
    [dims.product(), rows, k]
}

fn jobs<'a>(
    args: &QuantizeArgs,
    mix: &Mix,
    input: &'a Input,
    facts: &Facts,
    importance: Option<&'a Importance>,
) -> Result<Vec<Job<'a>>> {
    let mut used = vec![false; args.tensor_type.len()];
    let mut jobs = vec![];
    for tensor in &input.tensors {
        let GgufTensor { name, dtype, shape } = tensor;
        let [experts, _, k] = extent(shape);
        let given = args.tensor_type.iter().position(|(pattern, _)| has(name, pattern));
        let to = match given {
            _ if !may_change(name, shape) => *dtype,
            Some(given) => {
                used[given] = true;
                let to = args.tensor_type[given].1;
                if !k.is_multiple_of(to.block_len()) {
                    bail!("{name} cannot be {to}: its rows of {k} elements are no whole blocks");
                }
                to
            }
            None if args.pure => fitting(mix.base, k),
            None => mix.of(facts, name, shape),
        };
        let importance = match importance {
            Some(importance) if to != *dtype => importance.of(name, experts, k)?,
            _ => None,
        };
        jobs.push(Job { input, tensor, to, importance, left: AtomicUsize::new(0) });
    }
    if let Some(at) = used.iter().position(|used| !used) {
        return Err(Usage::error(format!(
            "--tensor-type {}: no tensor of {} that may change has that in its name, or each fits an earlier pattern",
            args.tensor_type[at].0,
            args.input.display()
        )));
    }
    Ok(jobs)
}

/// Says what a user may not expect.
fn remark(jobs: &[Job], importance: Option<&Importance>) {
    let changed = || jobs.iter().filter(|job| job.to != job.tensor.dtype);
    let again = changed().filter(|job| job.tensor.dtype.is_quantised());
    let mut types: Vec<&str> = again.clone().map(|job| job.tensor.dtype.name()).collect();
    types.sort_unstable();
    types.dedup();
    if !types.is_empty() {
        warn(format_args!(
            "{} tensors are {} already: they are decoded first, and what that lost stays lost",
            again.count(),
            types.join(" and ")
        ));
    }
    if let Some(importance) = importance {
        let met = changed().filter(|job| job.importance.is_some()).count();
        let all = changed().count();
        note(format_args!("importance of {} matrices, for {met} of the {all} that change", importance.len()));
        if met == 0 && all > 0 {
            warn("the importance matrix knows none of the matrices: it was made for another model");
        }
    }
}

/// The new file's metadata and tensors.
fn header(
    args: &QuantizeArgs,
    mix: &Mix,
    metadata: &GgufMetadata,
    jobs: &[Job],
) -> Result<GgufWriter<'static>> {
    let mut writer = GgufWriter::new();
    // Of shards, the new file has none.
    for (key, value) in metadata.iter().filter(|(key, _)| !key.starts_with("split.")) {
        writer.metadata(key, value.clone());
    }
    writer.metadata("general.file_type", Value::U32(mix.file_type));
    if jobs.iter().any(|job| job.to.is_quantised()) {
        writer.metadata("general.quantization_version", Value::U32(2));
    }
    if let Some(path) = &args.imatrix {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        writer.metadata("quantize.imatrix.file", Value::String(name));
    }
    for job in jobs {
        let stored = GgmlType::try_from(job.to).map_err(|d| anyhow!("no file holds {d}"))?;
        writer.declare(&job.tensor.name, stored, &job.tensor.shape)?;
    }
    Ok(writer)
}

impl Job<'_> {
    /// The bytes of some rows.
    fn make(&self, rows: &Rows, out: &mut Vec<u8>) -> Result<()> {
        let [experts, per_expert, k] = extent(&self.tensor.shape);
        let (from, to) = (self.tensor.dtype, self.to);
        let stored =
            self.input.rows(self.tensor, experts * per_expert, rows.first..rows.first + rows.count)?;
        if from == to {
            out.clear();
            out.extend_from_slice(&stored);
            return Ok(());
        }
        let mut values = vec![0.0; rows.count * k];
        blocks::decode(from, &stored, &mut values)?;
        out.resize(to.bytes_for(values.len()).context("rows of whole blocks")?, 0);
        let width = (out.len() / rows.count.max(1)).max(1);
        for (i, (row, out)) in values.chunks_exact(k.max(1)).zip(out.chunks_exact_mut(width)).enumerate() {
            let at = rows.first + i;
            let importance = self.importance.map(|v| &v[at / per_expert * k..][..k]);
            encode::encode(to, row, importance, out).map_err(|e| self.failed(at, e))?;
        }
        Ok(())
    }

    fn failed(&self, row: usize, error: EncodeError) -> anyhow::Error {
        let advice = match error {
            EncodeError::TooLarge { dtype: DType::F16, .. } => "; BF16 has room for it",
            EncodeError::NotFinite { .. } => "; the file is damaged",
            _ => "",
        };
        anyhow!("{} row {row}: {error}{advice}", self.tensor.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_parts_of_names() {
        for (pattern, fits) in [
            ("ffn_down", true),
            ("blk.3.*weight", true),
            ("*", true),
            ("blk.*.ffn_*.weight", true),
            ("blk.4", false),
            ("weight*blk", false),
            ("ffn_up", false),
        ] {
            assert_eq!(has("blk.3.ffn_down.weight", pattern), fits, "{pattern}");
        }
    }

    /// Rows of a piece that begins inside an expert, each with the columns that matter to its own expert.
    #[test]
    fn every_row_has_the_importance_of_its_expert() {
        let values: Vec<f32> = (0..3 * 2 * 32).map(|i| (i as f32 * 0.7).sin()).collect();
        let stored: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let importance: Vec<f32> = (0..3 * 32).map(|i| (i * i % 7) as f32).collect();
        let mut writer = GgufWriter::new();
        writer.tensor("w.weight", GgmlType::try_from(DType::F32).unwrap(), &[3, 2, 32], &stored).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), writer.to_bytes().unwrap()).unwrap();
        let input = Input::open(file.path()).unwrap();
        let row = |at: usize, expert: usize| {
            let mut out = vec![0; 18];
            let importance = &importance[expert * 32..][..32];
            encode::encode(DType::Q4_0, &values[at * 32..][..32], Some(importance), &mut out).unwrap();
            out
        };
        let job = Job {
            input: &input,
            tensor: &input.tensors[0],
            to: DType::Q4_0,
            importance: Some(&importance),
            left: AtomicUsize::new(1),
        };
        let mut out = vec![];
        job.make(&Rows { job: 0, first: 1, count: 4 }, &mut out).unwrap();
        assert!(out == [row(1, 0), row(2, 1), row(3, 1), row(4, 2)].concat());
        assert!((1..5).all(|at| row(at, 0) != row(at, 1) && row(at, 1) != row(at, 2)), "it matters which");
    }

    #[test]
    fn types_of_tensors_are_read() {
        for name in ["q6_K", "Q6_K", "q6_k"] {
            assert_eq!(tensor_type(&format!("a*b={name}")), Ok(("a*b".into(), DType::Q6_K)));
        }
        assert!(tensor_type("a=iq2_xs").unwrap_err().contains("`iq2_xs` is none of F32, F16"));
        assert!(tensor_type("=q8_0").is_err() && tensor_type("q8_0").is_err());
    }
}
