//! A split model is the model: the same bits from every shard.

use std::path::{Path, PathBuf};

use checks::variants::shards;
use gristmill::{Checkpoint, Llm, LoadOptions, score};

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/goldens-gguf/{case}.gguf"))
}

/// Fingerprint, and the bits of the logits of a text.
fn answer(path: &Path) -> (String, Vec<u32>) {
    let mut llm = Llm::load(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let ids = llm.encode("The mill grinds, and the river goes on.").unwrap();
    let fingerprint = llm.engine().fingerprint();
    let mut bits = vec![];
    score(llm.engine(), ids, 1, |_, logits| {
        bits.extend(logits.iter().map(|x| x.to_bits()));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    (fingerprint, bits)
}

#[test]
fn logits_and_fingerprint_are_those_of_the_whole_file_from_every_shard() {
    for case in ["llama", "qwen3_moe", "gemma3_text", "lfm2"] {
        let whole = Checkpoint::open(&golden(case)).unwrap();
        let want = answer(&golden(case));
        assert!(!want.1.is_empty());
        let n = whole.tensors().count();
        // Alike, uneven, and with a first shard that has no tensors.
        for sizes in [vec![n / 2, n - n / 2], vec![1, n - 3, 2], vec![0, 3, n - 3]] {
            let dir = tempfile::tempdir().unwrap();
            let name = |number: usize| dir.path().join(format!("m-{number:05}-of-{:05}.gguf", sizes.len()));
            let files = shards(&whole, &sizes).unwrap();
            files.iter().zip(1..).for_each(|(bytes, number)| std::fs::write(name(number), bytes).unwrap());
            for number in 1..=sizes.len() {
                let got = answer(&name(number));
                assert!(got == want, "{case} in {sizes:?}, opened from shard {number}");
            }
            let split = Checkpoint::open(dir.path()).unwrap();
            assert!(split.tensors().eq(whole.tensors()), "{case}");
        }
        // The control: other weights are told apart.
        let dir = tempfile::tempdir().unwrap();
        let mut files = shards(&whole, &[n - 1, 1]).unwrap();
        let last = files[1].len() - 64;
        files[1][last] ^= 1;
        for (bytes, number) in files.iter().zip(1..) {
            std::fs::write(dir.path().join(format!("m-{number:05}-of-00002.gguf")), bytes).unwrap();
        }
        assert_ne!(answer(&dir.path().join("m-00001-of-00002.gguf")).0, want.0, "{case}");
    }
}
