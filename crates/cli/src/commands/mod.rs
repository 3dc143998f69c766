//! One file per command.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod devices;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod man;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod synth;
pub(crate) mod tokenize;

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use gristmill::ByteSize;

use crate::args::Command;
use crate::error::Usage;

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// The text of an argument; `-`, or no argument when standard input is no terminal, reads standard input.
fn text_argument(argument: Option<String>, what: &str) -> Result<String> {
    match argument {
        Some(text) if text != "-" => Ok(text),
        None if std::io::stdin().is_terminal() => Err(Usage::error(format!(
            "{what} is missing: give it as an argument, or `-` to read standard input"
        ))),
        _ => text_file(Path::new("-"), what, MOST_PROMPT),
    }
}

/// The most text that is read as a prompt: more than fits any context.
const MOST_PROMPT: u64 = 256 << 20;

/// The text of a file in UTF-8, of so many bytes at most; `-` is standard input.
fn text_file(path: &Path, what: &str, most: u64) -> Result<String> {
    let name = if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() };
    let cannot = || format!("{what} cannot be read from {name}");
    let mut bytes = vec![];
    let mut take = |from: &mut dyn Read| from.take(most + 1).read_to_end(&mut bytes);
    let read = match path.as_os_str() == "-" {
        true => take(&mut std::io::stdin()),
        false => File::open(path).and_then(|mut file| take(&mut file)),
    };
    read.with_context(cannot)?;
    if bytes.len() as u64 > most {
        bail!("{name} has more than the {} of text that are read: give the beginning of it", ByteSize(most));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow!("{name} is no text in UTF-8: its byte {at} begins no character; convert it to UTF-8 first")
    })
}
