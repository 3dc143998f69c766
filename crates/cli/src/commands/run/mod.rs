//! `gristmill run`: one prompt, answered.

mod answer;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use gristmill::{Generate, Llm, Message};

use self::answer::{Answer, Form};
use crate::args::LoadArgs;
use crate::error::Usage;
use crate::output::note;
use crate::resolve::{at, describe};
use crate::sampling::{EndArgs, SamplingArgs};

/// Answer a prompt, streamed
///
/// The prompt is a chat turn where the model has a template, and is continued as it is where it has none. Without
/// --temperature the answer is greedy: the same prompt gives the same text.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The prompt, of one or more words; `-`, and none where standard input is not a terminal, reads standard input
    prompt: Vec<String>,
    /// Prompt from a UTF-8 file, `-` for standard input; the words of the command line come first, then an empty line, then
    /// the file
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Continue the prompt as it is, to its last line break, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    #[command(flatten)]
    end: EndArgs,
    /// Print one JSON object when the answer is complete: text, ids, finish_reason, counts, times, seed, fingerprint
    #[arg(long, conflicts_with = "json_lines")]
    json: bool,
    /// Print a JSON object a line: each piece of text as it comes, then the object of --json, which alone has finish_reason
    #[arg(long)]
    json_lines: bool,
    /// Tell of each token its probability and the N most probable in its place, before penalties and temperature; changes no
    /// token. Without --json, a line for each token takes the place of the text
    #[arg(long, visible_alias = "probabilities", value_name = "N")]
    logprobs: Option<usize>,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command.
pub(crate) fn run(args: RunArgs) -> Result<()> {
    let mut sampling = args.sampling.resolve()?;
    if sampling.temperature > 0.0 {
        sampling.seed.get_or_insert_with(gristmill::fresh_seed);
    }
    sampling.logprobs = args.logprobs;
    let generate = args.end.resolve(sampling)?;
    let prompt = prompt(args.prompt, args.file, args.raw)?;
    let start = Instant::now();
    let mut llm = args.load.llm()?;
    let load_seconds = start.elapsed().as_secs_f64();
    describe(llm.engine());
    let vocab = llm.info().vocab;
    if let Some(n) = args.logprobs.filter(|n| *n > vocab) {
        return Err(Usage::error(format!("--logprobs: is {n}, the vocabulary has {vocab} tokens")));
    }

    let ids = if args.raw {
        llm.encode(&prompt)?
    } else if llm.tokenizer().chat_template().is_some() {
        let system = args.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain([Message::new("user", &prompt)]).collect();
        llm.render(&messages).map_err(|error| match args.load.model.path() {
            Ok(path) => at(&path, error),
            Err(_) => error.into(),
        })?
    } else if args.system.is_some() {
        bail!(
            "this model has no chat template, so there is no place for --system: write all into the prompt"
        );
    } else {
        note("this model has no chat template: it continues the prompt");
        llm.encode(&prompt)?
    };
    let form = match (args.json, args.json_lines, args.logprobs) {
        (true, ..) => Form::Json,
        (_, true, _) => Form::JsonLines,
        (.., Some(_)) => Form::Tokens,
        _ => Form::Text,
    };
    answer(&mut llm, ids, &generate, form, load_seconds)
}

fn answer(llm: &mut Llm, ids: Vec<u32>, options: &Generate, form: Form, load_seconds: f64) -> Result<()> {
    let mut answer = Answer::new(llm, options, form, load_seconds);
    let mut generation = llm.generate_ids(ids, options)?;
    while let Some(piece) = generation.next() {
        answer.piece(&piece?, generation.generated())?;
    }
    match generation.outcome() {
        Some(outcome) => answer.end(&outcome),
        None => Ok(()),
    }
}

/// The prompt from the words of the command line and a file, of which one may be standard input.
fn prompt(words: Vec<String>, file: Option<PathBuf>, raw: bool) -> Result<String> {
    let from_input = |words: &[String]| words == ["-"];
    let prompt = match file {
        Some(file) if file.as_os_str() == "-" && from_input(&words) => {
            return Err(Usage::error("standard input can be read once: give `-` as the prompt or as --file"));
        }
        Some(file) => {
            let text = super::text_file(&file, "the prompt", super::MOST_PROMPT)?;
            match words.as_slice() {
                [] => text,
                words => format!("{}\n\n{text}", super::text_argument(Some(words.join(" ")), "the prompt")?),
            }
        }
        None => {
            let words = (!words.is_empty()).then(|| words.join(" "));
            super::text_argument(words, "the prompt")?
        }
    };
    if raw {
        return Ok(prompt);
    }
    if prompt.trim().is_empty() {
        return Err(Usage::error(
            "the prompt is empty: say something, or let the model begin with --raw \"\"",
        ));
    }
    // Files and pipes end with a line break that nobody means.
    let cut = prompt.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    Ok(cut.map_or_else(|| prompt.clone(), str::to_owned))
}
