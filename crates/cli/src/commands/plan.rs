//! `gristmill plan`: what was compiled for a model.

use std::io::Write;

use anyhow::Result;
use clap::Args;

use crate::args::{DeviceArgs, EngineArgs, ModelArgs, ThreadArgs};
use crate::output::bytes;
use crate::resolve::{load_ids_only, load_options, precision_name};

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let options = load_options(&args.device, &args.threads, args.engine.options(1));
    let engine = load_ids_only(&args.model, &options)?;
    let size = engine.cache_size();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    writeln!(out, "device       {}", engine.backend().description())?;
    writeln!(out, "precision    {}", precision_name(engine.precision()))?;
    writeln!(out, "context      {} tokens", size.context)?;
    writeln!(out, "KV pool      {} blocks, {} per token", size.blocks, bytes(size.bytes_per_token))?;
    writeln!(out, "states       {} slots, {} each", size.slots, bytes(size.bytes_per_slot))?;
    writeln!(out, "cache        {}", bytes(size.bytes()))?;
    writeln!(out, "fingerprint  {}", engine.fingerprint())?;
    for report in engine.reports() {
        writeln!(out, "\n{report}")?;
    }
    out.flush()?;
    Ok(())
}
