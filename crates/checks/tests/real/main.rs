//! Published checkpoints, which are not in the repository: `GRISTMILL_MODELS` holds GGUF files, `GRISTMILL_ANSWERS` JSON
//! files of the same names.

mod answers;

use std::path::PathBuf;
use std::sync::Arc;

use cpu::{CpuBackend, CpuOptions};
use gpu::{GpuBackend, GpuOptions};
use graph::backend::{Backend, KvType, Precision};
use gristmill_checks::open_model;

use crate::answers::{Class, Extent, check};

fn check_all(backend: &Arc<dyn Backend>, classes: &[Class], extent: Extent) {
    // Who asks for it by name means it: nothing to check is a failure.
    let directory = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .unwrap_or_else(|| panic!("{name} is not set: nothing can be checked"))
    };
    let (models, answers) = (directory("GRISTMILL_MODELS"), directory("GRISTMILL_ANSWERS"));
    let (mut seen, mut failed) = (0, false);
    let files = std::fs::read_dir(&answers).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|p| p.extension().is_some_and(|e| e == "json")) {
        let gguf = models.join(file.with_extension("gguf").file_name().unwrap());
        let model = open_model(&gguf).unwrap_or_else(|e| panic!("{e}"));
        for class in classes {
            let report = check(backend.clone(), model.clone(), &file, *class, extent).unwrap();
            println!("{}: {report}", gguf.display());
            failed |= !report.passed();
        }
        seen += 1;
    }
    assert!(seen > 0 && !failed);
}

#[test]
#[ignore = "needs GRISTMILL_MODELS and GRISTMILL_ANSWERS; cargo xtask full runs it"]
fn perplexity_and_clear_choices() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(CpuOptions::default()).unwrap());
    check_all(
        &backend,
        &[(Precision::Fast, None), (Precision::Fast, Some(KvType::Q8_0)), (Precision::Exact, None)],
        Extent::WHOLE,
    );
}

/// In the class that these files run in by default, over the beginning of the text.
#[test]
#[ignore = "needs GRISTMILL_MODELS and GRISTMILL_ANSWERS; cargo xtask full runs it"]
fn perplexity_and_clear_choices_on_a_gpu() {
    let opened = pollster::block_on(GpuBackend::open("gpu", &GpuOptions::default()));
    let backend: Arc<dyn Backend> = Arc::new(opened.unwrap_or_else(|e| panic!("{e}")));
    check_all(&backend, &[(Precision::Fast, None)], Extent { text: 128, prompts: 1 });
}
