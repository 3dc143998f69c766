//! How a failure ends the program.

use std::fmt;
use std::io;
use std::process::ExitCode;

use gristmill::EngineError;
use gristmill::sampling::SamplingError;

use crate::output;

/// A failure that the command line caused: the exit code is 2.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl Usage {
    /// An option's value is not usable.
    pub(crate) fn error(message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Usage(message.into()))
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Prints a failure with its causes and gives the exit code.
pub(crate) fn report(failure: &anyhow::Error) -> ExitCode {
    let closed = |e: &(dyn std::error::Error + 'static)| {
        let io = e.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = e.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    };
    if failure.chain().any(closed) {
        // Whoever reads the output has enough of it.
        return ExitCode::SUCCESS;
    }
    let usage = usage(failure);
    let code = ExitCode::from(if usage.is_some() { 2 } else { 1 });
    output::error(usage.unwrap_or_else(|| told(failure)));
    code
}

/// What is wrong with the command line, when it has to be another for this to go well.
fn usage(failure: &anyhow::Error) -> Option<String> {
    match failure.downcast_ref::<gristmill::Error>() {
        Some(
            gristmill::Error::Option { option, problem }
            | gristmill::Error::Engine(EngineError::Option { option, problem }),
        ) => {
            let (_, flag) = OPTIONS.iter().find(|(name, _)| name == option)?;
            Some(format!("{flag}: {problem}"))
        }
        _ => failure.downcast_ref::<Usage>().map(Usage::to_string),
    }
}

/// Options of the library that follow from the command line, and what sets them there.
const OPTIONS: [(&str, &str); 6] = [
    ("chunk", "--chunk"),
    ("context", "--context"),
    // How many devices share them.
    ("layers", "--device"),
    ("kv_type", "--kv-type"),
    ("stop", "--stop"),
    ("threads", "--threads"),
];

/// A failure with its causes and what to do.
pub(crate) fn told(failure: &anyhow::Error) -> String {
    // A cause that the message before it already tells is not told again.
    let mut told = String::new();
    for cause in failure.chain().map(ToString::to_string) {
        if !told.contains(&cause) {
            told += if told.is_empty() { "" } else { ": " };
            told += &cause;
        }
    }
    if let Some(advice) = failure.downcast_ref().and_then(advice) {
        told += "; ";
        told += advice;
    }
    told
}

/// The options of this program that mend what the library says, which knows none.
fn advice(error: &gristmill::Error) -> Option<&'static str> {
    let error = match error {
        gristmill::Error::Engine(error) => error,
        gristmill::Error::Template(_) => return Some("`run --raw` takes one"),
        _ => return None,
    };
    match error {
        EngineError::PromptTooLong { .. } | EngineError::NoRoomForOutput { .. } => {
            Some("the context is set with -c/--context")
        }
        EngineError::CacheTooSmall { given: true, fits: 0, .. } => Some("give more with --kv-memory"),
        EngineError::CacheTooSmall { given: true, .. } => {
            Some("give less with -c/--context, or more with --kv-memory")
        }
        EngineError::CacheTooSmall { .. } => Some("give less with -c/--context, or free some memory"),
        EngineError::ContextTooLong { .. } => Some("give less with -c/--context"),
        EngineError::Numeric { .. } | EngineError::Sampling(SamplingError::Logit { .. }) => Some(
            "check that the file is whole, and try --precision exact, which computes without 8-bit activations",
        ),
        EngineError::Sampling(SamplingError::Overflow { .. }) => {
            Some("penalties and biases are set with --repetition-penalty and --logit-bias")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_told_by_names_that_there_are() {
        for (option, flag) in OPTIONS {
            let name = flag.trim_start_matches("--");
            let command = crate::args::Cli::command();
            let run = command.find_subcommand("run").expect("a command");
            assert!(run.get_arguments().any(|a| a.get_long() == Some(name)), "{flag}");
            for error in [
                gristmill::Error::Option { option, problem: "is bad".to_owned() },
                EngineError::Option { option, problem: "is bad".to_owned() }.into(),
            ] {
                assert_eq!(usage(&error.into()), Some(format!("{flag}: is bad")));
            }
        }
        let other = gristmill::Error::Option { option: "max_sequences", problem: "is bad".to_owned() };
        assert_eq!(usage(&other.into()), None);
    }
}
