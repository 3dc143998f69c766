//! GPUs.

use std::io::Write;

use anyhow::Result;
use gristmill::parts::gpu::AdapterInfo;
use gristmill::{ByteSize, gpu_adapters};
use serde_json::{Map, Value, json};

use super::size;

/// Lists the GPUs; gives whether there are some.
pub(super) fn print(out: &mut impl Write) -> Result<bool> {
    let all = gpu_adapters();
    for (index, adapter) in all.iter().enumerate() {
        print_one(out, index, adapter)?;
    }
    Ok(!all.is_empty())
}

/// Lists the GPUs for programs.
pub(super) fn json() -> Vec<Value> {
    gpu_adapters().iter().enumerate().map(|(index, adapter)| json_of(index, adapter)).collect()
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

fn print_one(out: &mut impl Write, index: usize, adapter: &AdapterInfo) -> Result<()> {
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

fn json_of(index: usize, adapter: &AdapterInfo) -> Value {
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
