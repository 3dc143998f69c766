//! `gristmill bench`: speed, in the rows and columns of llama-bench, and how close it comes to the machine's limits.

mod measure;
mod report;
mod work;

use std::sync::Arc;

use anyhow::Result;
use clap::{Args, ValueEnum};
use gristmill::{Checkpoint, EngineOptions, Model, device_limits, load_engine};

use crate::args::{DeviceArgs, ModelArgs, PrecisionArg, ThreadArgs, positive, size};
use crate::error::Usage;
use crate::output::{byte_bar, note};
use crate::resolve::load_options;

use measure::Test;
use report::{Row, Subject};
use work::Work;

/// Arguments of `bench`.
///
/// A test `ppN` computes a prompt of N tokens and the logits of its last; `tgN` generates N tokens one by one; `@ dD`
/// does so after D tokens. Each test runs once to warm up, then `-r` times.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Prompt lengths, separated by commas; 0 for none
    #[arg(short = 'p', long, value_name = "N,...", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens, separated by commas; 0 for none
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<usize>,
    /// Depths: tokens in the cache before a test, separated by commas
    #[arg(short = 'd', long, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// CPU worker threads, separated by commas [default: one per processor]
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', value_parser = positive)]
    threads: Vec<usize>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive)]
    repetitions: usize,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Kernels [default: fast for quantised models]
    #[arg(long, value_name = "CLASS")]
    precision: Option<PrecisionArg>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", default_value_t = 512)]
    chunk: usize,
    /// Size of the buffer that is read to measure memory bandwidth; 0 measures no limits
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = probe_size)]
    probe: u64,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
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

fn probe_size(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

impl BenchArgs {
    /// The tests in llama-bench's order: for each depth the prompts, then the generations.
    fn tests(&self) -> Vec<Test> {
        let mut tests = vec![];
        for &depth in &self.n_depth {
            let prompts = self.n_prompt.iter().map(|&n| Test::Prompt { n, depth });
            let generations = self.n_gen.iter().map(|&n| Test::Generate { n, depth });
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
    let (path, checkpoint) = args.model.open()?;
    let model = Model::open(checkpoint.clone())
        .map_err(|source| gristmill::Error::Model { path: path.clone(), source })?;
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
    Ok(())
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
    let engine_options = EngineOptions {
        precision: args.precision.map(Into::into),
        context: Some(context),
        max_sequences: 1,
        chunk: args.chunk,
        ..EngineOptions::default()
    };
    let options = load_options(&args.device, &ThreadArgs { threads: Some(threads) }, engine_options);
    measure::reset_peak_memory();
    let bar = byte_bar("loading");
    let loaded = load_engine(path, checkpoint.clone(), &options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let mut engine = loaded?;
    let mut rows = vec![];
    for test in tests {
        note(format_args!("{test}, {threads} threads"));
        let samples = test.run(&mut engine, args.repetitions)?;
        rows.push(Row {
            test: *test,
            threads,
            chunk: args.chunk,
            repetitions: args.repetitions,
            device: engine.backend().description(),
            precision: engine.precision(),
            samples,
            peak_memory: measure::peak_memory(),
            shares: None,
        });
    }
    // The buffer of the probe must not count as memory of the model, so the limits come last.
    drop(engine);
    if args.probe > 0 {
        let bytes = usize::try_from(args.probe)?;
        if let Some(limits) = device_limits(&options.device, &options.device_options, bytes)? {
            for row in &mut rows {
                row.shares = Some(work.shares(row, limits));
            }
        }
    }
    Ok(rows)
}
