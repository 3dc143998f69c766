//! The conformance suite on the first adapter of this machine. Without one the tests fail: the message says what to install.

use std::hash::{DefaultHasher, Hash, Hasher};

use conformance::{Case, Report, run};
use gristmill_gpu::{GpuBackend, GpuOptions, Profile, multiplies};
use tensor::DType;

/// Another seed is another slice.
const SEED: u64 = 30;

fn open(profile: Profile) -> GpuBackend {
    let options = GpuOptions { profile, ..GpuOptions::default() };
    pollster::block_on(GpuBackend::open("gpu", &options)).unwrap_or_else(|e| panic!("{e}"))
}

fn check(report: &Report) {
    println!("{report}");
    assert!(
        !report.rows.is_empty() && report.failures.is_empty() && report.unsupported.is_empty(),
        "see above"
    );
}

/// Caches of types without kernels, which [`refuses_caches_that_it_does_not_claim`] tries.
fn foreign_cache(case: &Case) -> bool {
    ["kv_write", "attention"].contains(&case.op) && case.dtype == DType::Q8_0
}

/// Ops without a kernel, which [`refuses_other_ops_by_name`] tries.
const WITHOUT: [&str; 1] = ["gated_delta_rule"];

/// Neither these nor types of weights without a form on the device, which [`refuses_other_types_by_name`] tries.
fn supported(case: &Case) -> bool {
    !foreign_cache(case)
        && !WITHOUT.contains(&case.op)
        && (multiplies(case.dtype) || case.weights.values().all(|w| multiplies(w.dtype())))
}

#[test]
fn refuses_other_types_by_name() {
    let refused: Vec<DType> = DType::WEIGHTS.into_iter().filter(|d| !multiplies(*d)).collect();
    let report = run(&open(Profile::WebGpu), |case| {
        refused.contains(&case.dtype) && ["gather", "matmul", "matmuls", "expert_matmul"].contains(&case.op)
    });
    assert!(report.failures.is_empty(), "{report}");
    let cases: usize = report.rows.iter().flat_map(|(_, cells)| cells.values()).map(|cell| cell.cases).sum();
    assert!(cases >= 20 * refused.len(), "{report}");
    assert_eq!(report.unsupported.len(), cases, "{report}");
    for (case, reason) in &report.unsupported {
        let dtype = refused.iter().find(|d| case.split('/').any(|part| part == d.name()));
        assert!(dtype.is_some_and(|d| reason.contains(d.name())), "{case}: {reason}");
    }
}

#[test]
fn refuses_caches_that_it_does_not_claim() {
    let backend = open(Profile::WebGpu);
    let claimed = graph::backend::Backend::kv_types(&backend).iter().map(|kv| kv.dtype());
    assert_eq!(claimed.collect::<Vec<_>>(), [DType::F32, DType::F16]);
    let report = run(&backend, foreign_cache);
    let cases: usize = report.rows.iter().flat_map(|(_, cells)| cells.values()).map(|cell| cell.cases).sum();
    assert!(cases > 20 && report.failures.is_empty(), "{report}");
    assert_eq!(report.unsupported.len(), cases, "{report}");
    assert!(report.unsupported.iter().all(|(_, reason)| reason.contains("a KV cache of Q8_0")), "{report}");
}

#[test]
fn refuses_other_ops_by_name() {
    let report = run(&open(Profile::WebGpu), |case| WITHOUT.contains(&case.op));
    assert!(report.failures.is_empty(), "{report}");
    let cases: usize = report.rows.iter().flat_map(|(_, cells)| cells.values()).map(|cell| cell.cases).sum();
    assert!(cases > 0 && report.unsupported.len() == cases, "{report}");
    for (case, reason) in &report.unsupported {
        let named =
            WITHOUT.iter().any(|op| reason.contains(op)) && reason.contains("run the model on the CPU");
        assert!(named, "{case}: {reason}");
    }
}

#[test]
fn within_the_limits_of_webgpu() {
    check(&run(&open(Profile::WebGpu), supported));
}

/// A software driver takes seconds to compile some kernels, so not every case is tried each time.
#[test]
fn a_slice_with_all_features() {
    let in_slice = |case: &Case| {
        let mut hasher = DefaultHasher::new();
        (SEED, case.name()).hash(&mut hasher);
        supported(case) && hasher.finish().is_multiple_of(4)
    };
    check(&run(&open(Profile::Adapter), in_slice));
}

#[test]
#[ignore = "the cases of the slice and all others; `cargo xtask full` runs it"]
fn with_all_features() {
    check(&run(&open(Profile::Adapter), supported));
}

#[test]
fn entries_of_states_go_to_the_host_and_back() {
    for profile in [Profile::WebGpu, Profile::Adapter] {
        conformance::states(&open(profile)).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

/// A cache whose rows no plan has placed yet has no bytes that could be told.
#[test]
fn a_cache_without_a_plan_is_refused() {
    let backend = open(Profile::WebGpu);
    let shape = tensor::Shape::new(&[4, 16, 2, 40]).unwrap();
    let desc = graph::backend::StateDesc { name: "kv".to_owned(), dtype: DType::F16, shape };
    let state = graph::backend::Backend::state(&backend, &desc).unwrap();
    let error = graph::backend::Backend::entry_bytes(&backend, &state).unwrap_err().to_string();
    assert!(error.contains("`kv`") && error.contains("no plan"), "{error}");
}
