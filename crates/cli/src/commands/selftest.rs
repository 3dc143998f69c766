//! `gristmill selftest`: proof that a device computes what it should.

use anyhow::{Result, bail};
use clap::Args;
use gristmill::{DeviceOptions, open_device};

use crate::args::{DeviceArgs, ThreadArgs};

/// Arguments of `selftest`.
#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// Run only the conformance cases whose name (`op/type/class`) contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Runs the command.
pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let options =
        DeviceOptions { threads: args.threads.threads.unwrap_or(0), isa: args.device.isa.clone() };
    let backend = open_device(&args.device.device, &options)?;
    let wanted = |case: &conformance::Case| args.filter.as_ref().is_none_or(|f| case.name().contains(f));
    let report = conformance::run(&*backend, wanted);
    print!("{report}");
    if !report.passed() {
        bail!("{} failed conformance", backend.description());
    }
    Ok(())
}
