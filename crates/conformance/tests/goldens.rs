//! Goldens on the CPU, from both containers.

use std::path::Path;

use cpu::{CpuBackend, CpuOptions};
use gristmill_conformance::goldens;

const CASES: &[&str] = &[
    "llama",
    "llama3_rope",
    "llama_linear_rope",
    "llama_yarn",
    "mistral",
    "mistral_nowindow",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "lfm2",
];

#[test]
fn the_cpu_agrees_with_transformers() {
    let backend = CpuBackend::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let mut wrong = vec![];
    for case in CASES {
        let dir = tests.join("goldens").join(case);
        let gguf = tests.join("goldens-gguf").join(format!("{case}.gguf"));
        for checkpoint in [dir.clone(), gguf] {
            let container = checkpoint.extension().map_or("safetensors", |_| "gguf");
            match goldens::check(&backend, &dir, &checkpoint) {
                Ok(report) => {
                    println!(
                        "{case:<20}{container:<12}{:>4.0}%  {} greedy",
                        100.0 * report.worst(),
                        report.steps
                    );
                    wrong.extend(report.failures.iter().map(|f| format!("{case} {container}: {f}")));
                    assert!(report.failures.len() + report.steps > 0, "{case}: nothing was compared");
                }
                Err(e) => wrong.push(format!("{case} {container}: {e}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Expected values of another case are not met: the comparison can fail.
#[test]
fn another_model_fails() {
    let backend = CpuBackend::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    let report = goldens::check(&backend, &goldens.join("llama"), &goldens.join("llama3_rope")).unwrap();
    assert!(report.failures.iter().any(|f| f.starts_with("logits is off")), "{:?}", report.failures);
}
