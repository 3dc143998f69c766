//! The `gristmill` program.
//!
//! Standard output is for results alone; progress, notes and errors go to standard error. The exit code is 0 when all
//! went well, 1 when something failed, 2 when the command line was wrong.

mod args;
mod catalogue;
mod commands;
mod error;
mod fetch;
mod help;
mod output;
mod pieces;
mod resolve;
mod sampling;
mod whole;

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill::quiet_lost_devices();
    let ended = help::parse().and_then(|command| command.map_or(Ok(()), commands::run));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => error::report(&failure),
    }
}
