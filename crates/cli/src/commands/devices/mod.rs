//! `gristmill devices`: what there is to run on.

#[cfg_attr(not(feature = "gpu"), path = "no_gpus.rs")]
mod gpus;

use std::io::Write;

use anyhow::Result;
use clap::Args;
use gristmill::parts::cpu::isa::CpuIsa;
use gristmill::{ByteSize, DeviceOptions, open_device};
use serde_json::{Value, json};

use crate::output::results;

/// List the devices of this machine with what they offer
#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &DevicesArgs) -> Result<()> {
    let cpu = cpu()?;
    if args.json {
        let all: Vec<Value> = std::iter::once(cpu.json()).chain(gpus::json()).collect();
        return results().json(&all);
    }
    let mut out = std::io::BufWriter::new(results());
    cpu.print(&mut out)?;
    if !gpus::print(&mut out)? {
        writeln!(out, "\nno GPU: `--device gpu` says what is missing")?;
    }
    Ok(out.flush()?)
}

struct Cpu {
    isa: String,
    available: Vec<String>,
    threads: usize,
    memory: Option<u64>,
}

fn cpu() -> Result<Cpu> {
    // One thread: nothing is computed here.
    let backend = open_device("cpu", &DeviceOptions { threads: 1, ..DeviceOptions::default() })?;
    Ok(Cpu {
        isa: CpuIsa::detect().to_string(),
        available: CpuIsa::available().into_iter().map(|isa| isa.to_string()).collect(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        memory: backend.memory_limit(),
    })
}

impl Cpu {
    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "cpu")?;
        writeln!(out, "  {:<18}{} (of {})", "instructions", self.isa, self.available.join(", "))?;
        writeln!(out, "  {:<18}{}", "threads", self.threads)?;
        writeln!(out, "  {:<18}{} free", "memory", size(self.memory))?;
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "device": "cpu",
            "isa": self.isa,
            "isa_available": self.available,
            "threads": self.threads,
            "memory_bytes": self.memory,
        })
    }
}

fn size(memory: Option<u64>) -> String {
    memory.map_or_else(|| "unknown".into(), |n| ByteSize(n).to_string())
}
