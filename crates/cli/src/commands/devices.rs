//! `gristmill devices`: what there is to run on.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use gristmill::parts::cpu::isa::CpuIsa;
use gristmill::parts::gpu::AdapterInfo;
use gristmill::{ByteSize, DeviceOptions, gpu_adapters, open_device};
use serde_json::{Map, Value, json};

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
    let gpus = gpu_adapters();
    if args.json {
        let gpus = gpus.iter().enumerate().map(|(index, adapter)| gpu_json(index, adapter));
        let all: Vec<Value> = std::iter::once(cpu.json()).chain(gpus).collect();
        return results().json(&all);
    }
    let mut out = std::io::BufWriter::new(results());
    cpu.print(&mut out)?;
    for (index, adapter) in gpus.iter().enumerate() {
        print_gpu(&mut out, index, adapter)?;
    }
    if gpus.is_empty() {
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

/// The limits that decide how a model lies on a device and which kernels run; those called `size` are bytes.
fn limits(adapter: &AdapterInfo) -> [(&'static str, &'static str, u64); 5] {
    let l = &adapter.limits;
    [
        ("binding", "max_storage_buffer_binding_size", l.max_storage_buffer_binding_size),
        ("buffer", "max_buffer_size", l.max_buffer_size),
        (
            "storage buffers",
            "max_storage_buffers_per_shader_stage",
            l.max_storage_buffers_per_shader_stage.into(),
        ),
        (
            "invocations",
            "max_compute_invocations_per_workgroup",
            l.max_compute_invocations_per_workgroup.into(),
        ),
        (
            "workgroup memory",
            "max_compute_workgroup_storage_size",
            l.max_compute_workgroup_storage_size.into(),
        ),
    ]
}

fn print_gpu(out: &mut impl Write, index: usize, adapter: &AdapterInfo) -> Result<()> {
    let features = if adapter.features.is_empty() { "none".into() } else { adapter.features.join(", ") };
    writeln!(out, "\ngpu:{index}")?;
    let mut line = |name: &str, value: &str| writeln!(out, "  {name:<18}{value}");
    line("name", &adapter.name)?;
    line("API", &adapter.api)?;
    line("driver", &adapter.driver)?;
    let software = "software: a driver that computes on the CPU; slower than --device cpu";
    line("kind", if adapter.kind == "software" { software } else { adapter.kind })?;
    line("memory", &size(adapter.memory))?;
    line("features", &features)?;
    let (least, most) = adapter.subgroups;
    line("subgroup sizes", &format!("{least} to {most}"))?;
    for (name, field, value) in limits(adapter) {
        let value = if field.ends_with("size") { ByteSize(value).to_string() } else { value.to_string() };
        line(name, &format!("at most {value}"))?;
    }
    Ok(())
}

fn gpu_json(index: usize, adapter: &AdapterInfo) -> Value {
    let limits = limits(adapter).map(|(_, field, value)| (field.to_owned(), Value::from(value)));
    json!({
        "device": format!("gpu:{index}"),
        "name": adapter.name,
        "api": adapter.api,
        "driver": adapter.driver,
        "kind": adapter.kind,
        "memory_bytes": adapter.memory,
        "features": adapter.features,
        "subgroup_sizes": [adapter.subgroups.0, adapter.subgroups.1],
        "limits": Map::from_iter(limits),
    })
}

fn size(memory: Option<u64>) -> String {
    memory.map_or_else(|| "unknown".into(), |n| ByteSize(n).to_string())
}
