//! The same bits on the CPU whatever else happens, for every family, in both precisions, and the suite can fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cpu::{CpuBackend, CpuOptions};
use graph::backend::{Backend, KvType, Precision};
use gristmill_checks::CheckError;
use gristmill_checks::determinism::{LEAST_PROMPT, LEAST_TOKENS, Options, Report, run};
use gristmill_checks::goldens::CASES;
use gristmill_checks::open_model;
use gristmill_checks::quantise::{FORMATS, quantised};
use models::Model;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/goldens-gguf/{case}.gguf"))
}

fn cpu(threads: usize) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuOptions { threads, isa: None }).unwrap())
}

/// On more threads, too, than most machines that run this have processors.
fn options(precision: Precision) -> Options {
    Options { threads: &[1, 2, 3, 4, 8], ..Options::new(precision) }
}

fn check(name: &str, model: &Arc<Model>, options: &Options) -> Report {
    let report = run(&cpu, model, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    println!("{name}: {report}");
    assert!(report.passed(), "{name}: {report}");
    report
}

#[test]
fn every_family_in_exact_precision() {
    for case in CASES {
        check(case, &open_model(&golden(case)).unwrap(), &options(Precision::Exact));
    }
}

#[test]
fn every_family_in_every_block_format_in_fast_precision() {
    for case in CASES {
        let model = open_model(&golden(case)).unwrap();
        for format in FORMATS {
            let model = quantised(model.checkpoint(), format).unwrap();
            // That the comparisons can fail is shown once.
            let options = Options { controls: case == &CASES[0], ..options(Precision::Fast) };
            check(&format!("{case} {format}"), &model, &options);
        }
    }
}

#[test]
fn every_family_with_a_cache_of_q8_0() {
    for (i, case) in CASES.iter().enumerate() {
        let model = open_model(&golden(case)).unwrap();
        let model = quantised(model.checkpoint(), FORMATS[i % FORMATS.len()]).unwrap();
        // That the comparisons can fail is shown once.
        let options = Options { kv_type: Some(KvType::Q8_0), controls: i == 0, ..options(Precision::Fast) };
        check(case, &model, &options);
    }
}

/// Contexts long enough that their keys are divided over threads and merged.
#[test]
fn long_contexts() {
    for kv_type in KvType::ALL {
        let kv_type = Some(kv_type);
        let options = Options { kv_type, prompt: 600, controls: false, ..options(Precision::Exact) };
        check("llama", &open_model(&golden("llama")).unwrap(), &options);
    }
}

/// At the least that the options allow, every comparison still compares and every control still fails.
#[test]
fn the_shortest_prompts_prove_as_much() {
    for case in ["llama", "lfm2"] {
        let model = open_model(&golden(case)).unwrap();
        let least = Options { prompt: LEAST_PROMPT, tokens: LEAST_TOKENS, ..Options::new(Precision::Exact) };
        check(case, &model, &least);
        for less in
            [Options { prompt: LEAST_PROMPT - 1, ..least }, Options { tokens: LEAST_TOKENS - 1, ..least }]
        {
            let refused = run(&cpu, &model, &less);
            assert!(matches!(refused, Err(CheckError::Option { .. })), "{less:?}");
        }
    }
}
