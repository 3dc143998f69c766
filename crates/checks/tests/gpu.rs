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

const FAST: &str = "llama";

/// Models in both precisions: every family as it is, and a plain one in every block format.
fn determinism_of(profile: Profile, keep: impl Fn(usize) -> bool, options: impl Fn(Precision) -> Options) {
    let devices = [(); 3].map(|()| open(profile));
    let exact = CASES.iter().map(|case| (*case, None));
    let fast = FORMATS.iter().map(|format| (FAST, Some(*format)));
    for (_, (case, format)) in exact.chain(fast).enumerate().filter(|(i, _)| keep(*i)) {
        let model = open_model(&tests().join(format!("goldens-gguf/{case}.gguf"))).unwrap();
        match format {
            None => check(case, &devices, &model, &options(Precision::Exact)),
            Some(format) => {
                let model = quantised(model.checkpoint(), format).unwrap();
                check(&format!("{case} {format}"), &devices, &model, &options(Precision::Fast));
            }
        }
    }
}

fn short(precision: Precision) -> Options {
    Options::new(precision).short()
}

#[test]
fn determinism_within_the_limits_of_webgpu() {
    determinism_of(Profile::WebGpu, |_| true, short);
}

/// Another seed is another slice.
const SEED: u64 = 30;

/// Two families and a format; the ignored tests have all.
#[test]
fn determinism_of_a_slice_with_all_features() {
    let draw = |i: u64, of: usize| (graph::Stream::new(SEED).draw(i) * of as f32) as usize;
    let slice = [draw(0, CASES.len()), draw(1, CASES.len()), CASES.len() + draw(2, FORMATS.len())];
    determinism_of(Profile::Adapter, |i| slice.contains(&i), short);
}

#[test]
#[ignore = "takes many minutes on a software driver; `cargo xtask full` runs it"]
fn determinism_of_long_requests_with_controls() {
    determinism_of(Profile::WebGpu, |_| true, Options::new);
}

#[test]
#[ignore = "takes many minutes on a software driver; `cargo xtask full` runs it"]
fn determinism_of_long_requests_with_all_features() {
    determinism_of(Profile::Adapter, |_| true, Options::new);
}

/// Contexts of several splits of keys, in which few rows leave parts to be merged and many do not.
#[test]
fn determinism_of_contexts_of_several_splits() {
    let devices = [(); 3].map(|()| open(Profile::WebGpu));
    let options = Options { prompt: 300, tokens: 20, controls: false, ..Options::new(Precision::Exact) };
    check("llama", &devices, &open_model(&tests().join("goldens-gguf/llama.gguf")).unwrap(), &options);
}
