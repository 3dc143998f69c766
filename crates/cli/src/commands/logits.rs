//! `gristmill logits`: what a model predicts at every position of a token sequence.

use std::io::{self, Write};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use gristmill::score;

use crate::args::{DeviceArgs, EngineArgs, ModelArgs, ThreadArgs};
use crate::resolve::{load_ids_only, load_options};

/// Arguments of `logits`.
#[derive(Args, Debug)]
pub(crate) struct LogitsArgs {
    /// Token ids, separated by commas; nothing is added to them
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', required = true)]
    ids: Vec<u32>,
    /// Output format: `json` is {"vocab": V, "logits": [[...], ...]}, a row per position
    #[arg(long, default_value = "json")]
    format: Format,
    /// Positions to print
    #[arg(long, default_value = "all")]
    rows: Rows,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Format {
    /// One JSON object
    Json,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Rows {
    /// Every position
    All,
    /// The last position alone
    Last,
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let options = load_options(&args.device, &args.threads, args.engine.options(1));
    let mut engine = load_ids_only(&args.model, &options)?;
    let vocab = engine.info().vocab;
    let from = match args.rows {
        Rows::All => 0,
        Rows::Last => args.ids.len() - 1,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut written: Result<()> = Ok(());
    match args.format {
        Format::Json => {
            // Rows are written as they come: a long prompt of a large vocabulary has gigabytes of logits.
            score(&mut engine, args.ids.clone(), from, |first, logits| {
                if written.is_ok() {
                    written = rows(&mut out, vocab, first, first == from, logits);
                }
            })?;
            written?;
            writeln!(out, "]}}")?;
        }
    }
    out.flush()?;
    Ok(())
}

fn rows(out: &mut impl Write, vocab: usize, first: usize, begin: bool, logits: &[f32]) -> Result<()> {
    if begin {
        write!(out, "{{\"vocab\": {vocab}, \"logits\": [")?;
    }
    for (i, row) in logits.chunks_exact(vocab).enumerate() {
        if let Some(id) = row.iter().position(|x| !x.is_finite()) {
            bail!("position {}: the logit of token {id} is {}, which JSON cannot hold", first + i, row[id]);
        }
        if !(begin && i == 0) {
            out.write_all(b", ")?;
        }
        // The shortest digits that read back as the same f32.
        serde_json::to_writer(&mut *out, row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn pieces_make_one_array_and_every_digit_counts() {
        let mut out = vec![];
        rows(&mut out, 2, 3, true, &[0.1, -1.0e-30, 2.0, f32::MAX]).unwrap();
        rows(&mut out, 2, 5, false, &[1.0 / 3.0, 0.0]).unwrap();
        out.extend(b"]}");
        let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(read["vocab"], 2);
        let back: Vec<Vec<f32>> = serde_json::from_value(read["logits"].clone()).unwrap();
        assert_eq!(back, [[0.1, -1.0e-30], [2.0, f32::MAX], [1.0 / 3.0, 0.0]]);
        assert!(String::from_utf8(out).unwrap().contains("[0.33333334,0.0]"));
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        let error = rows(&mut vec![], 2, 3, true, &[0.0, 1.0, f32::NAN, 0.0]).unwrap_err();
        assert!(error.to_string().contains("position 4: the logit of token 0 is NaN"), "{error}");
    }
}
