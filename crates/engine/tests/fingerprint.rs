//! Engines have the same fingerprint when they give the same answers, and another when they may not.

use std::path::Path;
use std::sync::Arc;

use cpu::{CpuBackend, CpuOptions};
use formats::Checkpoint;
use graph::backend::{KvType, Precision};
use gristmill_engine::{Engine, EngineOptions};
use models::Model;

fn file() -> Vec<u8> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    std::fs::read(tests.join("goldens-gguf/llama.gguf")).unwrap()
}

/// On one device, whatever else is different.
fn fingerprint(file: Vec<u8>, threads: usize, options: &EngineOptions) -> String {
    let backend = Arc::new(CpuBackend::new(CpuOptions { threads, isa: None }).unwrap());
    let model = Model::open(Arc::new(Checkpoint::from_bytes(file).unwrap())).unwrap();
    let engine = Engine::new(Arc::new(model), vec![backend], options, &mut |_, _| {}).unwrap();
    engine.fingerprint()
}

fn plain(file: Vec<u8>) -> String {
    fingerprint(file, 1, &EngineOptions::default())
}

/// The place in the file where a metadata value of a simple type begins.
fn metadata(file: &[u8], key: &str) -> usize {
    let at = file.windows(key.len()).position(|w| w == key.as_bytes()).unwrap();
    at + key.len() + 4
}

#[test]
fn what_changes_no_bit_changes_no_fingerprint() {
    let first = plain(file());
    assert_eq!(first.len(), 16);
    assert_eq!(first, plain(file()));
    assert_eq!(first, fingerprint(file(), 2, &EngineOptions::default()), "threads");
    let mut renamed = file();
    let name = metadata(&renamed, "general.name") + 8;
    renamed[name] ^= 1;
    assert_eq!(first, plain(renamed), "the model's name");
}

#[test]
fn every_tensor_and_the_rotary_base_count() {
    let first = plain(file());
    let original = file();
    let checkpoint = Checkpoint::from_bytes(original.clone()).unwrap();
    let mut tensors = 0;
    for name in checkpoint.tensor_names() {
        // The end of a tensor is covered, however large it is.
        let bytes = checkpoint.tensor(name).unwrap().bytes;
        let at = original.windows(bytes.len()).position(|w| w == bytes).unwrap();
        let mut changed = original.clone();
        changed[at + bytes.len() - 4] ^= 1;
        assert_ne!(first, plain(changed), "{name}");
        tensors += 1;
    }
    assert!(tensors > 10);
    let mut changed = original.clone();
    let base = metadata(&changed, "llama.rope.freq_base");
    changed[base] ^= 1;
    assert_ne!(first, plain(changed), "rotary base");
}

#[test]
fn what_the_engine_is_set_to_counts() {
    let base = EngineOptions::default;
    let all = [
        base(),
        EngineOptions { precision: Some(Precision::Fast), ..base() },
        EngineOptions { kv_type: Some(KvType::F16), ..base() },
        EngineOptions { kv_type: Some(KvType::Q8_0), ..base() },
        EngineOptions { context: Some(32), ..base() },
        EngineOptions { max_sequences: 3, ..base() },
    ]
    .map(|options| fingerprint(file(), 1, &options));
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b), "{all:?}");
    }
}
