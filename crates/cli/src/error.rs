//! How a failure ends the program.

use std::fmt;
use std::io;
use std::process::ExitCode;

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
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    if failure.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(closed) {
        // Whoever reads the output has enough of it.
        return ExitCode::SUCCESS;
    }
    anstream::eprintln!("\x1b[1;31merror:\x1b[0m {failure:#}");
    match failure.downcast_ref::<Usage>() {
        Some(_) => ExitCode::from(2),
        None => ExitCode::from(1),
    }
}
