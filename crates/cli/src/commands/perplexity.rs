//! `gristmill perplexity`: how well a model predicts a text.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use gristmill::sampling::negative_log_likelihood;
use gristmill::{EncodeOptions, score, tokenizer_of};
use serde_json::json;

use crate::args::{LoadArgs, within};
use crate::output::results;
use crate::resolve::{at, describe, load};

/// The most text that is read, in bytes. All of it becomes tokens, although only the first are scored: no tokenizer
/// promises that the beginning of a text has the first tokens of the whole, and some take up to 140 times the size of the
/// text in memory.
const MOST_TEXT: u64 = 4 << 20;

/// Measure how well a model predicts a text
///
/// The whole text becomes tokens, BOS included where the model's file asks for it; special tokens written in it are plain
/// text. The first of them are scored in one window: the perplexity is exp of the mean negative log-likelihood of all of
/// them but the first.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// Text file in UTF-8, of at most 4 MiB
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// How many ids of the text to score, at least 2; a shorter text is scored whole
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = limit)]
    ids_limit: usize,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

fn limit(text: &str) -> Result<usize, String> {
    within(text, 2, gristmill::MAX_CONTEXT)
}

/// Runs the command.
pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let text = super::text_file(&args.file, "the text", MOST_TEXT)?;
    let (path, checkpoint) = args.load.model.open()?;
    let tokenizer = tokenizer_of(&checkpoint).map_err(|error| at(&path, error))?;
    let mut ids = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false })?;
    ids.truncate(args.ids_limit);
    if ids.len() < 2 {
        bail!(
            "the text in {} is {} for this model, and at least 2 tokens are needed: the first one is not scored",
            args.file.display(),
            if ids.is_empty() { "no token" } else { "1 token" }
        );
    }

    let mut engine = load(&path, checkpoint, &args.load.options())?;
    describe(&path, &engine);
    let context = engine.cache_size().context;
    if ids.len() > context {
        bail!(
            "{} ids are to be scored and the context holds {context}: score fewer with --ids-limit, or ask for a larger \
             context with -c/--context",
            ids.len()
        );
    }
    let (vocab, targets) = (engine.info().vocab, ids[1..].to_vec());
    // The last id predicts nothing that is known.
    ids.pop();
    let (mut total, mut impossible) = (0.0, None);
    score(&mut engine, ids, 0, |first, logits| {
        for (position, (row, target)) in (first..).zip(logits.chunks_exact(vocab).zip(&targets[first..])) {
            let nll = negative_log_likelihood(row, *target);
            if !nll.is_finite() {
                impossible = Some((position, *target));
                return ControlFlow::Break(());
            }
            total += nll;
        }
        ControlFlow::Continue(())
    })?;
    if let Some((position, target)) = impossible {
        bail!(
            "position {position}: token {target}, which follows there, cannot follow by the model's logits (its own is -inf): \
             there is no perplexity of this text"
        );
    }
    let mean = total / targets.len() as f64;
    let (ppl, tokens) = (mean.exp(), targets.len() + 1);
    if !ppl.is_finite() {
        bail!(
            "the mean negative log-likelihood is {mean}: the perplexity, its exponential, is beyond all numbers"
        );
    }
    let mut out = results();
    if args.json {
        writeln!(out, "{}", json!({ "ppl": ppl, "nll": mean, "tokens": tokens, "scored": targets.len() }))?;
    } else {
        writeln!(out, "ppl {ppl:.4}  nll {mean:.6}  tokens {tokens} ({} scored)", targets.len())?;
    }
    Ok(())
}
