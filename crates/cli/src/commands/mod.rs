//! One file per command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod devices;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod synth;
pub(crate) mod tokenize;

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result};

use crate::args::Command;
use crate::error::Usage;

/// Runs a command.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
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
    }
}

/// The text of an argument; `-`, or no argument when standard input is no terminal, reads standard input.
fn text_argument(argument: Option<String>, what: &str) -> Result<String> {
    match argument {
        Some(text) if text != "-" => Ok(text),
        None if std::io::stdin().is_terminal() => Err(Usage::error(format!(
            "{what} is missing: give it as an argument, or `-` to read standard input"
        ))),
        _ => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.with_context(|| format!("{what} cannot be read from standard input"))?;
            Ok(text)
        }
    }
}
