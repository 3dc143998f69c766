//! `gristmill plan`: what was compiled for a model.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use gristmill::ByteSize;

use crate::args::LoadArgs;
use crate::output::results;
use crate::resolve::precision_name;

/// Show what was compiled for a model: kernels with reasons, memory
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    load: LoadArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let engine = args.load.engine()?;
    let size = engine.cache_size();
    let mut out = std::io::BufWriter::new(results());
    writeln!(out, "device       {}", engine.device())?;
    writeln!(out, "precision    {}", precision_name(engine.precision()))?;
    writeln!(out, "context      {} tokens", size.context)?;
    let (kv_type, each) = (engine.kv_type(), ByteSize(size.bytes_per_token));
    writeln!(out, "KV pool      {} blocks of {kv_type}, {each} per token", size.blocks)?;
    writeln!(out, "states       {} slots, {} each", size.slots, ByteSize(size.bytes_per_slot))?;
    writeln!(out, "cache        {}", ByteSize(size.bytes()))?;
    writeln!(out, "fingerprint  {}", engine.fingerprint())?;
    for report in engine.reports() {
        writeln!(out, "\n{report}")?;
    }
    out.flush()?;
    Ok(())
}
