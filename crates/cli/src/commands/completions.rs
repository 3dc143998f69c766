//! `gristmill completions`: what a shell completes.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::help;
use crate::output::results;

/// Print a shell's completions of this program
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut help::command(), "gristmill", &mut script);
    let mut out = results();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
