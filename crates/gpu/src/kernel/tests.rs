//! Every kernel that the conformance suite makes, and every product that can be chosen, is valid WGSL within the limits of its
//! device, and naga translates it for Metal and DX12.

use std::collections::HashSet;
use std::sync::Arc;

use conformance::Case;
use conformance::case::Padding;
use graph::backend::{CompileOptions, Precision};
use graph::rewrite;
use naga::AddressSpace;
use naga::back::{hlsl, msl};
use naga::valid::{Capabilities as Valid, ValidationFlags, Validator};
use tensor::DType;
use wgpu::{Backends, Features, Limits};

use crate::adapter::{Profile, open_adapter};
use crate::compile::compile;
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::pack::multiplies;
use crate::select::{self, Elementwise, Families, KvKernel, Matmul};

/// What kernels may use.
struct Class {
    lanes: u32,
    /// Lanes of a subgroup.
    subgroup: Option<u32>,
    exact_halves: bool,
}

/// A device of this class that runs nothing.
fn device(class: &Class) -> Arc<Gpu> {
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
    desc.backends = Backends::NOOP;
    desc.backend_options.noop = wgpu::NoopBackendOptions {
        enable: true,
        limits: Some(Limits {
            max_compute_invocations_per_workgroup: class.lanes,
            max_compute_workgroup_size_x: class.lanes,
            ..Limits::default()
        }),
        features: Some(if class.subgroup.is_some() { Features::SUBGROUP } else { Features::empty() }),
        device_type: None,
        subgroup_min_size: class.subgroup,
        subgroup_max_size: class.subgroup,
    };
    let adapters = pollster::block_on(wgpu::Instance::new(desc).enumerate_adapters(Backends::NOOP));
    let profile = if class.subgroup.is_some() { Profile::Adapter } else { Profile::WebGpu };
    let opened = pollster::block_on(open_adapter(&adapters[0], profile, Families::default()));
    let mut gpu = opened.unwrap_or_else(|e| panic!("{e}"));
    Arc::get_mut(&mut gpu).expect("nobody else has it yet").capabilities.exact_halves = class.exact_halves;
    gpu
}

/// Whether the device has no kernels for a case. `tests/conformance.rs` sees that it refuses these, and no others.
fn refused(case: &Case) -> bool {
    let foreign_cache = ["kv_write", "attention"].contains(&case.op) && case.dtype == DType::Q8_0;
    foreign_cache || case.op == "gated_delta_rule" || !case.weights.values().all(|w| multiplies(w.dtype()))
}

/// The kernels of the conformance suite.
fn of_the_suite(gpu: &Arc<Gpu>) -> Vec<Kernel> {
    for case in conformance::cases::all().into_iter().filter(|case| !refused(case)) {
        let mut graph = case.graph(Padding::default()).unwrap_or_else(|e| panic!("{e}"));
        rewrite::standard(&mut graph);
        for precision in [Precision::Exact, Precision::Fast] {
            let options = CompileOptions { label: case.name(), precision, profile: false };
            compile(gpu, &graph, &options).unwrap_or_else(|e| panic!("{}: {e}", case.name()));
        }
    }
    gpu.kernels()
}

/// What the suite's graphs, each about one op, do not ask for: products of all sizes, and fused kernels.
fn others(gpu: &Gpu) -> Vec<Kernel> {
    let mut out = vec![];
    let gates = [None, Some(Elementwise::SiluMul), Some(Elementwise::GeluErfMul)];
    for (dtype, integer) in DType::ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        for (experts, gate) in [false, true].into_iter().flat_map(|e| gates.map(|g| (e, g))) {
            for (rows, outputs, blocks) in
                [1, 2, 4, 8, 16].into_iter().flat_map(|r| [(r, 1, 1), (r, 10_000, 100), (r, 30_000, 100)])
            {
                if integer && !dtype.is_quantised() {
                    continue;
                }
                let m = Matmul { dtype, integer, experts, rows, gate, outputs, blocks };
                out.extend(select::matmul(&gpu.capabilities, m).map(|m| m.kernel));
            }
        }
    }
    for (half, [k_dim, v_dim]) in
        [false, true].into_iter().flat_map(|h| [[128, 128], [576, 512]].map(|d| (h, d)))
    {
        let kv = KvKernel { half, k_dim, v_dim };
        out.extend([false, true].map(|norm| select::rope_kv(&gpu.capabilities, kv, norm)));
        out.push(select::kv_write(kv));
        out.extend([false, true].map(|split| select::attention(&gpu.capabilities, kv, split)));
    }
    out.extend([64, 512].map(select::merge));
    for width in [1, 4096, 20_000] {
        let kinds = [(false, false), (true, false), (false, true), (true, true)];
        out.extend(kinds.map(|(add, codes)| select::rms_norm(&gpu.capabilities, width, add, codes)));
    }
    out
}

/// What is wrong with a kernel.
fn problem(kernel: &Kernel, class: &Class) -> Result<(), String> {
    let source = kernel.source();
    let module = naga::front::wgsl::parse_str(&source).map_err(|e| e.emit_to_string(&source))?;
    // Builtins on binary16 in integers are of WGSL itself; `f16` is not.
    let mut valid = Valid::SHADER_FLOAT16_IN_FLOAT32;
    valid.set(Valid::SUBGROUP, class.subgroup.is_some());
    let checked = Validator::new(ValidationFlags::all(), valid).validate(&module);
    let info = checked.map_err(|e| e.emit_to_string(&source))?;
    let buffers =
        module.global_variables.iter().filter(|(_, v)| matches!(v.space, AddressSpace::Storage { .. }));
    let shared = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    let bytes: u32 = shared.map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx())).sum();
    let lanes: u32 = module.entry_points[0].workgroup_size.iter().product();
    let buffers = buffers.count();
    if buffers > 8 || bytes > 16 << 10 || lanes > class.lanes {
        return Err(format!("{buffers} storage buffers, {bytes} bytes of workgroup memory, {lanes} lanes"));
    }
    let options = msl::Options { lang_version: (2, 4), ..msl::Options::default() };
    msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .map_err(|e| format!("MSL: {e}"))?;
    let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..hlsl::Options::default() };
    let mut out = String::new();
    hlsl::Writer::new(&mut out, &options, &hlsl::PipelineOptions::default())
        .write(&module, &info, None)
        .map_err(|e| format!("HLSL: {e}"))?;
    Ok(())
}

fn check(class: &Class) {
    let gpu = device(class);
    let recorded = of_the_suite(&gpu);
    let kernels: HashSet<Kernel> = recorded.into_iter().chain(others(&gpu)).collect();
    let families: HashSet<&str> = kernels.iter().map(|k| k.family).collect();
    println!("{} kernels of {} families", kernels.len(), families.len());
    for family in
        ["matmul_i8", "gated_i8", "gated_f32", "norm_rope_kv", "rope_kv", "sample", "attention_merge"]
    {
        assert!(families.contains(family), "{family} is not among {families:?}");
    }
    let problems: Vec<String> = kernels
        .iter()
        .filter_map(|k| problem(k, class).err().map(|e| format!("{}: {e}", k.name())))
        .collect();
    assert!(
        problems.is_empty(),
        "{} kernels:\n{}",
        problems.len(),
        problems[..problems.len().min(5)].join("\n")
    );
}

#[test]
fn portable_kernels_are_valid_everywhere() {
    check(&Class { lanes: 256, subgroup: None, exact_halves: false });
}

#[test]
fn kernels_with_subgroups_are_valid() {
    check(&Class { lanes: 1024, subgroup: Some(32), exact_halves: true });
    check(&Class { lanes: 256, subgroup: Some(8), exact_halves: false });
}

/// The check can fail: a class without subgroups refuses kernels that use them, and small workgroups large ones.
#[test]
fn a_kernel_beyond_its_class_is_found() {
    let wide = Class { lanes: 1024, subgroup: Some(32), exact_halves: true };
    let gpu = device(&wide);
    let m = Matmul {
        dtype: DType::Q4_0,
        integer: true,
        experts: false,
        rows: 1,
        gate: None,
        outputs: 9,
        blocks: 9,
    };
    let product = select::matmul(&gpu.capabilities, m).expect("a type of weights").kernel;
    let norm = select::rms_norm(&gpu.capabilities, 4096, false, false);
    assert_eq!((problem(&product, &wide), problem(&norm, &wide)), (Ok(()), Ok(())));
    let portable = Class { lanes: 256, subgroup: None, exact_halves: false };
    assert!(problem(&product, &portable).unwrap_err().contains("subgroup"));
    assert!(problem(&norm, &portable).unwrap_err().contains("1024 lanes"));
}
