//! The command line with its examples, and what `--help` and `--version` print.

use std::io::Write;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches};

use crate::args::{self, Cli};
use crate::output::own_results;

/// What exit codes mean.
pub(crate) const EXIT_CODES: [(u8, &str); 3] = [
    (0, "done; also when the reader of standard output closed it early, as `head` does"),
    (1, "failed: a model, a file, memory or the device; a selftest that found a fault"),
    (2, "the command line cannot be used: an unknown option, or a value that is not allowed"),
];

/// What the environment changes.
pub(crate) const ENVIRONMENT: [(&str, &str); 7] = [
    ("GRISTMILL_CACHE", "folder for fetched models, where --cache-dir names none"),
    ("HF_ENDPOINT", "the hub that `pull` speaks to, where --hub names none"),
    ("HF_TOKEN", "a token for the hub; it goes nowhere else"),
    ("HTTPS_PROXY, NO_PROXY", "the proxy of fetches, and hosts that need none"),
    ("NO_COLOR, CLICOLOR=0, TERM=dumb", "no colours; what is no terminal gets none in any case"),
    ("CLICOLOR_FORCE", "colours also where no terminal is"),
    ("COLUMNS", "width of the help where no terminal tells it"),
];

/// What a command line does.
pub(crate) type Example = (&'static str, &'static str);

/// Command lines to begin with.
pub(crate) const FIRST: &[Example] = &[
    ("gristmill run \"Why is the sky blue?\"", "answer with the default model"),
    (
        "gristmill run -m model.gguf -f notes.txt \"Summarise:\"",
        "answer about a file with a model of your own",
    ),
    ("gristmill inspect -m model.gguf", "see what a file holds and what memory it takes"),
    ("gristmill run --help", "all options of a command; -h tells the usual ones"),
];

/// Examples of each command.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "run",
        &[
            ("gristmill run \"Why is the sky blue?\"", "answer with the default model"),
            ("gristmill run -m model.gguf --temperature 0.8 --seed 1 Hello", "vary the answer, repeatably"),
            ("gristmill run -f notes.txt \"Summarise these notes:\"", "words first, then the file"),
            ("git diff | gristmill run \"Explain this change:\" -", "words first, then standard input"),
            ("gristmill run --raw -n 32 \"Once upon a time\"", "continue a text, without the chat template"),
            (
                "gristmill run --json --logprobs 3 Hello",
                "an object with text, ids, reason, probabilities, times",
            ),
        ],
    ),
    (
        "pull",
        &[
            ("gristmill pull", "list the models that are known by name"),
            ("gristmill pull smollm2-135m-instruct", "fetch one of them"),
            ("gristmill pull hf:owner/name:Q4_K_M", "the GGUF file of a hub repository whose name ends so"),
            ("gristmill pull https://example.org/model.gguf", "a file of any address"),
        ],
    ),
    (
        "models",
        &[
            ("gristmill models", "what was fetched, and how large it is"),
            ("gristmill models verify", "read it all again and compare checksums"),
            ("gristmill models remove smollm2-135m-instruct", "free the space"),
        ],
    ),
    (
        "chat",
        &[
            ("gristmill chat", "talk with the default model; /help lists what else can be said"),
            (
                "gristmill chat --session talk.session",
                "go on with a conversation, or begin one that is saved there",
            ),
            ("gristmill chat -c 32768 --kv-type q8_0", "a long one, which takes half the memory"),
        ],
    ),
    (
        "inspect",
        &[
            ("gristmill inspect -m model.gguf", "hyper-parameters, memory, metadata, types, tensors"),
            ("gristmill inspect -m model.gguf -c 32768", "the memory of a context of 32768 tokens"),
            ("gristmill inspect -m model.gguf --graph svg -o model.svg", "the graph as a picture"),
            ("gristmill inspect -m model.gguf --json", "all of it for programs"),
        ],
    ),
    (
        "tokenize",
        &[
            ("gristmill tokenize -m model.gguf \"Hello world\"", "a line for each token"),
            ("gristmill tokenize -m model.gguf --ids - < notes.txt", "the ids of a file"),
        ],
    ),
    (
        "logits",
        &[("gristmill logits -m model.gguf --rows last --ids 5,17,9", "the logits behind the last id")],
    ),
    ("perplexity", &[("gristmill perplexity -m model.gguf -f text.txt", "of the first 1024 ids of a text")]),
    (
        "bench",
        &[
            ("gristmill bench -m model.gguf", "512 tokens of prompt, 128 of output"),
            (
                "gristmill bench -m model.gguf -p 0 -n 64 -t 1,2,4 -o json",
                "output at several numbers of threads",
            ),
        ],
    ),
    ("plan", &[("gristmill plan -m model.gguf --device gpu", "the kernels of a GPU, with reasons")]),
    (
        "selftest",
        &[
            ("gristmill selftest --device gpu --filter matmul", "the products of a GPU"),
            ("gristmill selftest --goldens tests/goldens", "whole models and determinism too"),
        ],
    ),
    (
        "quantize",
        &[
            ("gristmill quantize model-f16.gguf model-q4.gguf Q4_K_M", "make a model smaller"),
            ("gristmill quantize model-q8.gguf model-f16.gguf F16", "undo a quantisation"),
        ],
    ),
    (
        "synth",
        &[
            ("gristmill synth --shape qwen3-8b --quant Q4_0 big.gguf", "a large model to measure"),
            (
                "gristmill synth --shape qwen3-30b-a3b --layers 4 --quant Q4_K experts.gguf",
                "some layers of a mixture of experts",
            ),
        ],
    ),
    (
        "devices",
        &[("gristmill devices", "what there is to run on"), ("gristmill devices --json", "for programs")],
    ),
    (
        "completions",
        &[
            (
                "mkdir -p ~/.local/share/bash-completion/completions && gristmill completions bash > \
                 ~/.local/share/bash-completion/completions/gristmill",
                "for bash",
            ),
            (
                "mkdir -p ~/.zfunc && gristmill completions zsh > ~/.zfunc/_gristmill",
                "for zsh, where ~/.zfunc is in fpath",
            ),
            (
                "mkdir -p ~/.config/fish/completions && gristmill completions fish > \
                 ~/.config/fish/completions/gristmill.fish",
                "for fish",
            ),
        ],
    ),
    (
        "man",
        &[
            ("gristmill man | man -l -", "read the page"),
            (
                "gristmill man --dir ~/.cargo/share/man/man1",
                "install the pages of all commands, for `man`, which looks beside the folders of the PATH, as ~/.cargo/bin",
            ),
        ],
    ),
];

/// The examples of a command.
pub(crate) fn examples(command: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(name, _)| *name == command).map_or(&[], |(_, examples)| examples)
}

/// The command line with what the long help tells beside options.
pub(crate) fn command() -> Command {
    let mut command =
        Cli::command().after_help("`gristmill COMMAND --help` tells all of a command, with examples.");
    command = command.after_long_help(after(FIRST, true));
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        let text = after(examples(&name), false);
        command = command.mut_subcommand(name, |c| c.after_long_help(text));
    }
    command
}

/// Examples, exit codes and, for the whole program, the environment.
fn after(examples: &[Example], whole: bool) -> String {
    let mut text = String::new();
    if !examples.is_empty() {
        text += "Examples:\n";
        examples.iter().for_each(|(line, what)| text += &format!("  {line}\n      {what}\n"));
        text += "\n";
    }
    if whole {
        text += "Results go to standard output; progress, notes and errors go to standard error.\n\nEnvironment:\n";
        ENVIRONMENT.iter().for_each(|(name, what)| text += &format!("  {name}\n      {what}\n"));
        text += "\n";
    }
    text += "Exit codes:\n";
    EXIT_CODES.iter().for_each(|(code, what)| text += &format!("  {code}  {what}\n"));
    text.trim_end().to_owned()
}

/// Reads the command line; nothing where it asked for help or the version, which are printed. A wrong one ends the program
/// here, with code 2.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn parse() -> Result<Option<args::Command>> {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => Ok(Some(cli.command)),
        Err(told) if !told.use_stderr() => {
            let colours = anstream::AutoStream::choice(&std::io::stdout());
            let told = told.render();
            let mut out = own_results();
            match colours {
                anstream::ColorChoice::Never => write!(out, "{told}")?,
                _ => write!(out, "{}", told.ansi())?,
            }
            out.flush()?;
            Ok(None)
        }
        Err(wrong) => with_tip(wrong, std::env::args().nth(1)).exit(),
    }
}

/// A tip for who names the model without `-m`.
fn with_tip(mut wrong: clap::Error, command: Option<String>) -> clap::Error {
    let takes_model = |command: &Command| command.get_arguments().any(|arg| arg.get_long() == Some("model"));
    let Some(name) = command.filter(|name| self::command().find_subcommand(name).is_some_and(takes_model))
    else {
        return wrong;
    };
    if let (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) =
        (wrong.kind(), wrong.get(ContextKind::InvalidArg))
        && !word.starts_with('-')
    {
        let tip = format!("a model is named with -m: gristmill {name} -m {word}");
        wrong.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command has examples, and every example is a command line that is read.
    #[test]
    fn examples_are_command_lines() {
        let names: Vec<String> = command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
        for name in names.iter().filter(|name| *name != "help") {
            assert!(!examples(name).is_empty(), "{name} has no examples");
        }
        let all = EXAMPLES.iter().flat_map(|(_, examples)| *examples).chain(FIRST);
        for (example, _) in all {
            // What comes before it is no business of ours.
            let line =
                ["| ", "&& "].iter().find_map(|before| example.split_once(&format!("{before}gristmill")));
            let line = line.map_or((*example).to_owned(), |(_, rest)| format!("gristmill{rest}"));
            let line = line
                .split([' '])
                .take_while(|word| !["|", ">", "<"].contains(word))
                .collect::<Vec<_>>()
                .join(" ");
            // Quoted text is one word.
            let quoted = line.split('"').enumerate();
            let words = quoted.flat_map(|(i, part)| match i % 2 {
                1 => vec![part.to_owned()],
                _ => part.split_whitespace().map(str::to_owned).collect(),
            });
            let told = command().try_get_matches_from(words).err();
            let told = told.filter(clap::Error::use_stderr);
            assert!(told.is_none(), "{line}: {}", told.map(|e| e.to_string()).unwrap_or_default());
        }
    }
}
