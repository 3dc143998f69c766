//! The models answer as an independent implementation does, from both containers, and the check can fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cpu::isa::CpuIsa;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::Backend;
use gristmill_checks::faults::{Fault, FaultyBackend};
use gristmill_checks::goldens::{CASES, check_case};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn backend(isa: CpuIsa) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuOptions { threads: 1, isa: Some(isa) }).unwrap())
}

fn check_all(isa: CpuIsa) {
    let backend = backend(isa);
    let check = |checkpoint: &Path, case: &str| {
        let golden = tests().join("goldens").join(case);
        check_case(backend.clone(), checkpoint, &golden, 1.0).unwrap_or_else(|e| panic!("{case}: {e}"))
    };
    let mut failed = vec![];
    for case in CASES {
        for checkpoint in [format!("goldens/{case}"), format!("goldens-gguf/{case}.gguf")] {
            let report = check(&tests().join(&checkpoint), case);
            println!("{checkpoint}: {report}");
            if !report.passed() {
                failed.push(format!("{checkpoint}: {report}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn goldens_on_the_best_instruction_set() {
    check_all(CpuIsa::detect());
}

#[test]
fn goldens_on_scalar_code() {
    check_all("scalar".parse().unwrap());
}

/// Rows that see later keys go wrong in the first layer.
#[test]
fn a_wrong_device_fails_where_it_goes_wrong() {
    let faulty = Arc::new(FaultyBackend::new(backend(CpuIsa::detect()), Fault::SeesChunk));
    let golden = tests().join("goldens/llama");
    let report = check_case(faulty, &golden, &golden, 1.0).unwrap();
    assert!(!report.passed());
    assert_eq!(report.first_failure().unwrap().name, "hidden.1", "{report}");
    assert!(report.to_string().contains("first out of bounds: hidden.1"), "{report}");
}
