//! `gristmill run`: one prompt, answered.

mod answer;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use gristmill::{Generate, Llm, Message};

use self::answer::{Answer, Form};
use crate::args::{LoadArgs, whole};
use crate::error::Usage;
use crate::output::{note, warn};
use crate::resolve::{at, describe};
use crate::sampling::{EndArgs, SamplingArgs};

/// Answer a prompt, streamed
///
/// The prompt is a chat turn where the model has a template, and is continued as it is where it has none. Without
/// --temperature the answer is greedy: the same prompt gives the same text.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The prompt, of one or more words; a word `-` stands for standard input, an empty line apart from the other words, and so
    /// does no word at all where standard input is not a terminal
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
    #[arg(long, visible_alias = "probabilities", value_name = "N", value_parser = whole::<usize>("--logprobs 3"))]
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
    let (prompt, read) = prompt(&args.prompt, args.file.as_deref(), args.raw)?;
    let start = Instant::now();
    let (path, mut llm) = args.load.llm()?;
    let load_seconds = start.elapsed().as_secs_f64();
    describe(&path, llm.engine());
    let vocab = llm.info().vocab;
    if let Some(n) = args.logprobs.filter(|n| *n > vocab) {
        return Err(Usage::error(format!("--logprobs: is {n}, the vocabulary has {vocab} tokens")));
    }

    let ids = if args.raw {
        llm.encode(&prompt)?
    } else if llm.tokenizer().chat_template().is_some() {
        let system = args.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain([Message::new("user", &prompt)]).collect();
        llm.render(&messages).map_err(|error| at(&path, error))?
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
    // Whoever fills a pipe may begin late: what comes while the answer is made is told behind it.
    let told = read || warn_of_unread_input();
    answer(&mut llm, ids, &generate, form, load_seconds)?;
    if !told {
        warn_of_unread_input();
    }
    Ok(())
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

/// The prompt from the words of the command line and a file, of which one may be standard input; and whether that was read.
fn prompt(words: &[String], file: Option<&Path>, raw: bool) -> Result<(String, bool)> {
    let is_input = |word: &String| word == "-";
    let among = words.iter().filter(|word| is_input(word)).count();
    let inputs = among + usize::from(file.is_some_and(|file| file.as_os_str() == "-"));
    if inputs > 1 {
        return Err(Usage::error("standard input can be read once: give one `-`, as a word or as --file"));
    }
    let nothing = words.is_empty() && file.is_none();
    let prompt = if nothing {
        super::text_argument(None, "the prompt")?
    } else {
        let parts = words.chunk_by(|word, next| !is_input(word) && !is_input(next)).map(|part| match part {
            [word] if is_input(word) => input_among(words),
            part => Ok(part.join(" ")),
        });
        let file = file.map(|file| super::text_file(file, "the prompt", super::MOST_PROMPT));
        parts.chain(file).collect::<Result<Vec<_>>>()?.join("\n\n")
    };
    let read = nothing || inputs > 0;
    if raw {
        return Ok((prompt, read));
    }
    if prompt.trim().is_empty() {
        return Err(Usage::error(
            "the prompt is empty: say something, or let the model begin with --raw \"\"",
        ));
    }
    // Files and pipes end with a line break that nobody means.
    let cut = prompt.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    Ok((cut.unwrap_or(&prompt).to_owned(), read))
}

/// Standard input, where a word of the prompt is `-`. A dash may have been meant, as in `5 - 3`.
fn input_among(words: &[String]) -> Result<String> {
    const DASH: &str = "where a dash is meant, put the prompt in quotation marks";
    if words.len() > 1 && std::io::stdin().is_terminal() {
        note(format_args!("the word `-` is what you type now, to Ctrl-D on a line of its own; {DASH}"));
    }
    let text = super::text_file(Path::new("-"), "the prompt", super::MOST_PROMPT)?;
    if words.len() > 1 && text.is_empty() {
        warn(format_args!("the word `-` stands for standard input, which is empty; {DASH}"));
    }
    Ok(text)
}

/// Warns of text on a standard input that is no part of the prompt; gives whether there is some. Nothing is read or waited for:
/// a pipe that stays open may never have anything.
fn warn_of_unread_input() -> bool {
    let there = has_input();
    if there {
        warn(
            "standard input has text that is no part of the prompt: a word `-` takes it in, `< /dev/null` says that it is not \
             meant",
        );
    }
    there
}

/// Whether something can be read from standard input that nobody types.
#[cfg(unix)]
fn has_input() -> bool {
    let input = std::io::stdin();
    !input.is_terminal() && rustix::io::ioctl_fionread(&input).is_ok_and(|bytes| bytes > 0)
}

/// Other systems do not tell without being read.
#[cfg(not(unix))]
fn has_input() -> bool {
    false
}
