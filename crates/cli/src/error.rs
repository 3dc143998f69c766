//! How a failure ends the program.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output::say;

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
    // A cause that the message before it already tells is not told again.
    let mut told = String::new();
    for cause in failure.chain().map(ToString::to_string) {
        if !told.contains(&cause) {
            told += if told.is_empty() { "" } else { ": " };
            told += &cause;
        }
    }
    say(format_args!("\x1b[1;31merror:\x1b[0m {told}"));
    match failure.downcast_ref::<Usage>() {
        Some(_) => ExitCode::from(2),
        None => ExitCode::from(1),
    }
}
