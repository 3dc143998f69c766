//! Whole models on the first GPU of this machine: answers and determinism.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu::{GpuBackend, GpuOptions, Profile};
use graph::backend::{Backend, Precision};
use gristmill_checks::determinism::{Options, run};
use gristmill_checks::goldens::{CASES, GPU_FACTOR, Report, check_case};
use gristmill_checks::open_model;
use gristmill_checks::quantise::{FORMATS, quantised};
use models::Model;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The first adapter. Without one the tests fail: the message says what to install.
fn open(profile: Profile) -> Arc<dyn Backend> {
    let options = GpuOptions { profile, ..GpuOptions::default() };
    let opened = pollster::block_on(GpuBackend::open("gpu", &options));
    Arc::new(opened.unwrap_or_else(|e| panic!("{e}")))
}

fn goldens(profile: Profile) {
    let backend = open(profile);
    let check = |checkpoint: &Path, case: &str| {
        let golden = tests().join("goldens").join(case);
        check_case(backend.clone(), checkpoint, &golden, GPU_FACTOR).unwrap_or_else(|e| panic!("{case}: {e}"))
    };
    let mut reports: Vec<Report> = vec![];
    for case in CASES {
        let start = std::time::Instant::now();
        reports.push(check(&tests().join(format!("goldens-gguf/{case}.gguf")), case));
        println!("{:.2}s {}", start.elapsed().as_secs_f64(), reports.last().unwrap());
    }
    assert!(reports.iter().all(Report::passed));
}

#[test]
fn goldens_within_the_limits_of_webgpu() {
    goldens(Profile::WebGpu);
}

#[test]
fn goldens_with_all_features() {
    goldens(Profile::Adapter);
}

fn check(name: &str, devices: &[Arc<dyn Backend>; 3], model: &Arc<Model>, options: &Options) {
    let start = std::time::Instant::now();
    let report = run(&|n| devices[n - 1].clone(), model, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    println!("{:.2}s {name}: {report}", start.elapsed().as_secs_f64());
    assert!(report.passed(), "{name}: {report}");
}

/// A seeded slice: a plain family, routing and a recurrent one, and the formats of the real checkpoints.
#[test]
fn determinism() {
    let devices = [(); 3].map(|()| open(Profile::WebGpu));
    let short = |precision| Options { prompt: 65, tokens: 3, controls: false, ..Options::new(precision) };
    for case in ["llama", "lfm2"] {
        let model = open_model(&tests().join(format!("goldens-gguf/{case}.gguf"))).unwrap();
        check(case, &devices, &model, &short(Precision::Exact));
    }
    let model = open_model(&tests().join("goldens-gguf/llama.gguf")).unwrap();
    let model = quantised(model.checkpoint(), FORMATS[0]).unwrap();
    check("llama, quantised", &devices, &model, &short(Precision::Fast));
}

#[test]
#[ignore = "takes half an hour on a software driver; `cargo xtask full` runs it"]
fn determinism_of_every_family_and_format() {
    let devices = [(); 3].map(|()| open(Profile::WebGpu));
    for case in CASES {
        let model = open_model(&tests().join(format!("goldens-gguf/{case}.gguf"))).unwrap();
        check(case, &devices, &model, &Options::new(Precision::Exact));
    }
    for format in FORMATS {
        let model = open_model(&tests().join("goldens-gguf/llama.gguf")).unwrap();
        let model = quantised(model.checkpoint(), format).unwrap();
        check(&format!("llama {format}"), &devices, &model, &Options::new(Precision::Fast));
    }
}
