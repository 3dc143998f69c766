//! `gristmill bench`: speed, in the rows and columns of llama-bench, and how close it comes to the machine's limits.

mod kernels;
mod measure;
mod plot;
mod report;
mod work;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use gristmill::{
    ByteSize, Checkpoint, EngineError, EngineOptions, Error, LoadOptions, MAX_CONTEXT, MAX_SEQUENCES, Model,
    measure_peaks,
};

use crate::args::{CacheArgs, DeviceArgs, ModelArgs, StepArgs, positive, size, threads, within};
use crate::error::Usage;
use crate::output::note;
use crate::resolve::{engine_options, load};
use crate::whole::write_whole;

use kernels::Kernels;
use measure::Test;
use plot::Panel;
use report::{Row, Subject};
use work::Work;

/// Measure speed, in the rows and columns of llama-bench
///
/// A test `ppN` computes a prompt of N tokens and the logits of its last; `tgN` generates N tokens one by one; `@ dD`
/// does so after D tokens. Each test runs once to warm up, then `-r` times.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Prompt lengths, separated by commas; 0 for none
    #[arg(short = 'p', long, value_name = "N,...", value_delimiter = ',', value_parser = count, default_value = "512")]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens, separated by commas; 0 for none
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', value_parser = count, default_value = "128")]
    n_gen: Vec<usize>,
    /// Depths: tokens in the cache before a test, separated by commas
    #[arg(short = 'd', long, value_name = "N,...", value_delimiter = ',', value_parser = count, default_value = "0")]
    n_depth: Vec<usize>,
    /// Sequences that generate at once, separated by commas; the speed is that of all together
    #[arg(short = 's', long, value_name = "N,...", value_delimiter = ',', value_parser = sequences, default_value = "1")]
    sequences: Vec<usize>,
    /// CPU worker threads, separated by commas, at most four for each processor [default: one for each]
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', value_parser = threads)]
    threads: Vec<usize>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive)]
    repetitions: usize,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Size of the buffer that is read to measure memory bandwidth, of a GPU of both buffers of a copy; 0 measures nothing
    /// [default: 1G, or as much of it as a GPU copies at a time]
    #[arg(long, value_name = "SIZE", value_parser = probe_size)]
    probe: Option<u64>,
    /// Time every kernel, in one more run of each test on plans of their own, and set it beside the limits
    #[arg(long)]
    profile: bool,
    /// Draw the kernels of each test under the limits of memory and arithmetic (a roofline), as an SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    step: StepArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Format {
    /// A Markdown table
    Md,
    /// A JSON array with an object per test
    Json,
    /// Comma-separated values with a header line
    Csv,
}

/// A number of tokens of a test.
fn count(text: &str) -> Result<usize, String> {
    within(text, 0, MAX_CONTEXT)
}

/// A number of sequences.
fn sequences(text: &str) -> Result<usize, String> {
    within(text, 1, MAX_SEQUENCES)
}

fn probe_size(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

impl BenchArgs {
    /// The tests in llama-bench's order: for each depth the prompts, then the generations.
    fn tests(&self) -> Vec<Test> {
        let mut tests = vec![];
        for &depth in &self.n_depth {
            let prompts = self.n_prompt.iter().map(|&n| Test::Prompt { n, depth });
            let generations = self.n_gen.iter().flat_map(|&n| {
                self.sequences.iter().map(move |&sequences| Test::Generate { n, depth, sequences })
            });
            tests.extend(prompts.chain(generations).filter(|t| t.tokens() > 0));
        }
        tests
    }
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let tests = args.tests();
    let Some(context) = tests.iter().map(Test::context).max() else {
        return Err(Usage::error("there is nothing to measure: -p and -n are both 0"));
    };
    if args.sequences != [1] && args.n_gen.iter().all(|&n| n == 0) {
        return Err(Usage::error("-s is for sequences that generate, and -n is 0"));
    }
    if args.plot.is_some() && args.probe == Some(0) {
        return Err(Usage::error("--plot draws kernels under the limits, which --probe 0 does not measure"));
    }
    let (path, checkpoint) = args.model.open()?;
    let model =
        Model::open(checkpoint.clone()).map_err(|source| Error::Model { path: path.clone(), source })?;
    let work = Work::of(&model)?;
    let subject = Subject::new(&path, model.info(), &checkpoint);
    drop(model);

    let threads = match args.threads.as_slice() {
        [] => vec![std::thread::available_parallelism().map_or(1, usize::from)],
        given => given.to_vec(),
    };
    let mut rows = vec![];
    for threads in threads {
        rows.extend(run_group(args, threads, context, &tests, &path, &checkpoint, &work)?);
    }
    match args.output {
        Format::Md => report::markdown(&subject, &rows)?,
        Format::Json => report::json(&subject, &rows)?,
        Format::Csv => report::csv(&subject, &rows)?,
    }
    // Behind the report, which nobody should lose because a file cannot be written.
    args.plot.as_ref().map_or(Ok(()), |path| draw(&rows, path))
}

/// Writes the picture of all tests.
fn draw(rows: &[Row], path: &std::path::Path) -> Result<()> {
    let mut panels = vec![];
    for row in rows {
        let Some((kernels, shares)) = row.kernels.as_ref().zip(row.shares) else { continue };
        let kernels = kernels.counted();
        if kernels.is_empty() {
            bail!("--plot: {} does not tell how much its kernels compute", row.device);
        }
        let title = format!("{}, {} threads, {}", row.test, row.threads, row.device);
        panels.push(Panel { title, peaks: shares.peaks, kernels });
    }
    write_whole(path, |file| Ok(file.write_all(plot::svg(&panels).as_bytes())?))
}

/// All tests with one number of threads.
fn run_group(
    args: &BenchArgs,
    threads: usize,
    context: usize,
    tests: &[Test],
    path: &std::path::Path,
    checkpoint: &Arc<Checkpoint>,
    work: &Work,
) -> Result<Vec<Row>> {
    let cache = CacheArgs { context: Some(context), kv_memory: None };
    let mut options = LoadOptions {
        device: args.device.device.clone(),
        device_options: args.device.options(threads),
        engine: EngineOptions {
            max_sequences: tests.iter().map(Test::sequences).max().unwrap_or(1),
            ..engine_options(&args.step, &cache)
        },
    };
    measure::reset_peak_memory();
    let start = Instant::now();
    let mut engine = load(path, checkpoint.clone(), &options).map_err(|error| match error {
        // The context follows from the tests: they are what can be changed.
        Error::Engine(EngineError::Option { option: "context", problem }) => {
            Usage::error(format!("-p, -n and -d: the context of the longest test {problem}"))
        }
        Error::Engine(error @ (EngineError::CacheTooSmall { .. } | EngineError::ContextTooLong { .. })) => {
            anyhow!("{error}; measure fewer tokens with -p, -n and -d, or fewer sequences with -s")
        }
        other => other.into(),
    })?;
    let (ready, loaded) = (start.elapsed(), measure::peak_memory());
    let peak = loaded.map(|peak| format!(", peak memory {}", ByteSize(peak))).unwrap_or_default();
    note(format_args!("ready in {:.2} s{peak}", ready.as_secs_f64()));
    let mut rows = vec![];
    for test in tests {
        note(format_args!("{test}, {threads} threads"));
        let samples = test.run(&mut engine, args.repetitions)?;
        rows.push(Row {
            test: *test,
            threads,
            chunk: args.step.chunk,
            repetitions: args.repetitions,
            device: engine.device(),
            precision: engine.precision(),
            kv_type: engine.kv_type(),
            samples,
            ready,
            peak_memory: measure::peak_memory(),
            shares: None,
            kernels: None,
        });
    }
    // The buffer of the probe must not count as memory of the model, so the peaks come last.
    drop(engine);
    if args.probe != Some(0) {
        let peaks = measure_peaks(&options.device, &options.device_options, args.probe)
            .context("--probe: the limits could not be measured")?;
        for row in &mut rows {
            row.shares = peaks.map(|peaks| work.shares(row, peaks));
        }
    }
    if args.profile || args.plot.is_some() {
        options.engine.profile = true;
        let mut engine = load(path, checkpoint.clone(), &options)?;
        for row in &mut rows {
            note(format_args!("{}, kernels", row.test));
            row.kernels = Kernels::of(&row.test, &mut engine, args.step.chunk)?;
            if row.kernels.is_none() {
                bail!("{} cannot time its kernels", engine.device());
            }
        }
    }
    Ok(rows)
}
