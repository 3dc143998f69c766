//! The `gristmill` program.
//!
//! Standard output is for results alone; progress, notes and errors go to standard error. The exit code is 0 when all
//! went well, 1 when something failed, 2 when the command line was wrong.

mod args;
mod catalogue;
mod commands;
mod error;
mod fetch;
mod output;
mod pieces;
mod resolve;
mod sampling;
mod whole;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    gristmill::quiet_lost_devices();
    // A wrong command line ends here, with code 2.
    let cli = args::Cli::parse();
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => error::report(&failure),
    }
}
