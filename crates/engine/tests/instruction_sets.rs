//! A model answers the same bits on every instruction set that this machine has, in both precisions, and answers right.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checks::drive;
use checks::goldens::check_case;
use checks::open_model;
use checks::quantise::{FORMATS, quantised};
use cpu::isa::CpuIsa;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::{Backend, Precision};
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{Engine, EngineOptions, Event, Request, Task};
use models::Model;

/// Attention alone, a mixture of experts, convolutions.
const CASES: [&str; 3] = ["llama", "qwen3_moe", "lfm2"];

/// Tokens of the continuation.
const TOKENS: usize = 8;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn backend(isa: CpuIsa) -> Arc<dyn Backend> {
    Arc::new(CpuBackend::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap())
}

/// The bits of the logits behind every position of a prompt and its continuation.
fn logits(isa: CpuIsa, model: &Arc<Model>, precision: Precision) -> Vec<u32> {
    let options = EngineOptions { precision: Some(precision), logits: true, ..Default::default() };
    let mut engine = Engine::new(model.clone(), vec![backend(isa)], &options, &mut |_, _| {}).unwrap();
    let vocab = model.info().vocab as u32;
    // Longer than a widest tile of tokens and no multiple of one.
    let prompt: Vec<u32> = (0..37).map(|i| (7 + 13 * i) % vocab).collect();
    let generate = Task::Generate {
        max_tokens: Some(TOKENS),
        sampling: SamplingOptions::default(),
        entropy: 0,
        stop: vec![],
    };
    let mut bits = vec![];
    for task in [Task::Score { from: 0 }, generate] {
        engine.submit(Request { prompt: prompt.clone(), task, session: None }).unwrap();
        drive(&mut engine, |event| {
            if let Event::Scores { logits, .. } = event {
                bits.extend(logits.iter().map(|x| x.to_bits()));
            }
            matches!(event, Event::Finished { .. })
        })
        .unwrap();
    }
    assert!(bits.len() > prompt.len() * model.info().vocab, "{isa}: logits of {TOKENS} tokens are missing");
    bits
}

#[test]
fn the_same_bits_on_every_instruction_set() {
    let all = CpuIsa::available();
    for case in CASES {
        let plain = open_model(&tests().join(format!("goldens-gguf/{case}.gguf"))).unwrap();
        let mut runs = vec![(plain.clone(), "as it is")];
        for format in FORMATS {
            runs.push((quantised(plain.checkpoint(), format).unwrap(), format.name()));
        }
        for (model, format) in runs {
            let answers = [Precision::Exact, Precision::Fast].map(|precision| {
                let portable = logits(all[0], &model, precision);
                for &isa in &all[1..] {
                    let differ = logits(isa, &model, precision) != portable;
                    assert!(!differ, "{case} {format} {precision:?}: {isa} and {} differ", all[0]);
                }
                portable
            });
            assert!(
                answers[0] != answers[1],
                "{case} {format}: equal in both precisions, so nothing was compared"
            );
        }
    }
}

#[test]
fn goldens_on_every_instruction_set() {
    for isa in CpuIsa::available() {
        for case in CASES {
            let golden = tests().join("goldens").join(case);
            let report = check_case(backend(isa), &golden, &golden, 1.0).unwrap();
            assert!(report.passed(), "{case} on {isa}: {report}");
        }
    }
}
