//! `gristmill perplexity`: how well a model predicts a text.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use gristmill::EncodeOptions;
use serde_json::json;

use crate::args::{DeviceArgs, EngineArgs, ModelArgs, ThreadArgs, positive};
use crate::resolve::{describe, load, load_options};

/// Arguments of `perplexity`.
///
/// The first ids of the text, BOS included where the model's file asks for it, are scored in one window: the perplexity
/// is exp of the mean negative log-likelihood of all of them but the first.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// Text file; special tokens written in it are plain text
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// How many ids of the text to score
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    ids_limit: usize,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.file);
    let text = text.with_context(|| format!("{} cannot be read as text", args.file.display()))?;
    let options = load_options(&args.device, &args.threads, args.engine.options(1));
    let mut llm = load(&args.model, &options)?;
    describe(llm.engine());
    let mut ids = llm.tokenizer().encode(&text, EncodeOptions { add_special: true, parse_special: false })?;
    ids.truncate(args.ids_limit);
    if ids.len() < 2 {
        bail!("{} gives {} token: at least 2 are needed", args.file.display(), ids.len());
    }
    let vocab = llm.info().vocab;
    let mut total = 0.0;
    let targets = ids[1..].to_vec();
    // The last id predicts nothing that is known.
    ids.pop();
    llm.score(ids, 0, |first, logits| {
        for (row, target) in logits.chunks_exact(vocab).zip(&targets[first..]) {
            total += negative_log_likelihood(row, *target as usize);
        }
    })?;
    let mean = total / targets.len() as f64;
    let (ppl, tokens) = (mean.exp(), targets.len() + 1);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "ppl": ppl, "nll": mean, "tokens": tokens, "scored": targets.len() }))?;
    } else {
        writeln!(out, "ppl {ppl:.4}  nll {mean:.6}  tokens {tokens} ({} scored)", targets.len())?;
    }
    Ok(())
}

/// `-ln softmax(logits)[target]` in f64.
fn negative_log_likelihood(logits: &[f32], target: usize) -> f64 {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(f64::from(x)));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    sum.ln() + max - f64::from(logits[target])
}

#[cfg(test)]
mod tests {
    use super::negative_log_likelihood;

    #[test]
    fn likelihoods_are_those_of_softmax() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} and {b}");
        near(negative_log_likelihood(&[0.0, 0.0, 0.0, 0.0], 2), 4f64.ln());
        near(negative_log_likelihood(&[1000.0, 1001.0], 0), (1.0 + 1f64.exp()).ln());
        near(negative_log_likelihood(&[1000.0, 1001.0], 1), (1.0 + 1f64.exp()).ln() - 1.0);
    }
}
