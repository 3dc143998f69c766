//! Models of folders, written as GGUF, are the same models; what such files cannot say is refused by name.

mod common;

use std::sync::Arc;

use checks::goldens::CASES;
use common::{open, tests};
use formats::Checkpoint;
use formats::gguf::{GgmlType, GgufWriter};
use gristmill_models::{Model, ModelError};

fn written(model: &Model) -> Result<Vec<u8>, ModelError> {
    let form = model.gguf_form()?;
    let mut writer = GgufWriter::new();
    for (key, value) in &form.metadata {
        writer.metadata(key, value.clone());
    }
    let bytes: Vec<Vec<u8>> = form
        .tensors
        .iter()
        .map(|t| {
            let (vector, rows) = (t.shape.len() == 1, t.shape.iter().rev().skip(1).product::<usize>());
            let middle = if vector { 0 } else { rows / 2 };
            let read = |range| model.gguf_rows(&form, &t.name, range).unwrap();
            [read(0..middle), read(middle..rows)].concat()
        })
        .collect();
    for (tensor, bytes) in form.tensors.iter().zip(&bytes) {
        writer.tensor(&tensor.name, GgmlType::try_from(tensor.dtype).unwrap(), &tensor.shape, bytes).unwrap();
    }
    Ok(writer.to_bytes().unwrap())
}

fn reopened(bytes: Vec<u8>) -> Model {
    Model::open(Arc::new(Checkpoint::from_bytes(bytes).unwrap())).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn goldens_become_the_files_that_the_reference_makes_of_them() {
    for case in CASES {
        let bytes =
            written(&open(&tests().join("goldens").join(case))).unwrap_or_else(|e| panic!("{case}: {e}"));
        let ours = Checkpoint::from_bytes(bytes.clone()).unwrap();
        let theirs = Checkpoint::open(&tests().join(format!("goldens-gguf/{case}.gguf"))).unwrap();
        let names =
            |c: &Checkpoint| c.tensor_names().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(names(&ours), names(&theirs), "{case}");
        for name in names(&ours) {
            let (a, b) = (ours.tensor(&name).unwrap(), theirs.tensor(&name).unwrap());
            assert_eq!((a.dtype, &a.shape), (b.dtype, &b.shape), "{case} {name}");
            // Divisors are rounded.
            let same = if name == "rope_freqs.weight" {
                let floats = |bytes: &[u8]| -> Vec<f32> {
                    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
                };
                floats(a.bytes).iter().zip(floats(b.bytes)).all(|(a, b)| (a - b).abs() <= 3e-7 * b)
            } else {
                a.bytes == b.bytes
            };
            assert!(same, "{case} {name}");
        }
        let metadata = ours.gguf().unwrap();
        for (key, value) in metadata.iter() {
            if let Some(theirs) = theirs.gguf().unwrap().value(key) {
                // What the reference's file was given for layers that are not there.
                assert!(
                    value == theirs || key == "qwen3moe.feed_forward_length",
                    "{case} {key}: {value:?} {theirs:?}"
                );
            }
        }
        let strip = |m: &Model| {
            let mut info = m.info().clone();
            (info.name, info.architecture) = (String::new(), "");
            info
        };
        assert_eq!(strip(&reopened(bytes)), strip(&open(&tests().join("goldens").join(case))), "{case}");
    }
}

/// Written from a file that was written, it is the same file: rows for interleaved pairs stay where they are.
#[test]
fn what_was_written_is_written_again_as_it_is() {
    for case in CASES {
        let once = written(&open(&tests().join("goldens").join(case))).unwrap();
        // Divisors are rounded again.
        if *case != "llama3_rope" {
            assert!(written(&reopened(once.clone())).unwrap() == once, "{case}");
        }
    }
}

/// Every flag that tiny checkpoints of their own set.
#[test]
fn flags_are_written_or_refused_by_name() {
    let refused = [
        ("llama_dynamic", "dynamic"),
        ("llama_longrope", "longrope"),
        ("llama_yarn_mscale", "truncate"),
        ("llama_yarn_factor", "magnitude"),
        ("llama_gelu", "activation"),
        ("llama_biases", "activation"),
        ("gemma3_untied", "activation"),
        ("lfm2_biases", "conv_bias"),
        ("lfm2_convs", "without attention"),
        ("qwen2_layer_types", "sliding_window"),
        ("qwen2_window", "sliding_window"),
        ("qwen2_heads", "sliding_window"),
        ("qwen3_biases", "sliding_window"),
        ("qwen3_moe_window", "sliding_window"),
        ("qwen3_moe_mixed", "norm_topk_prob"),
    ];
    let mut told_of = vec![];
    for folder in std::fs::read_dir(tests().join("fixtures/models")).unwrap().flatten() {
        let case = folder.file_name().into_string().unwrap();
        let model = open(&folder.path());
        let expected = refused.iter().find(|(name, _)| *name == case);
        match (written(&model), expected) {
            (Err(e), Some((_, word))) => {
                let told = e.to_string();
                assert!(told.contains(word) && told.contains("cannot be converted"), "{case}: {told}");
                told_of.push(case);
            }
            (Ok(bytes), None) => {
                let again = reopened(bytes);
                let (a, b) = (again.info(), model.info());
                assert_eq!((&a.kv, &a.rings, a.vocab), (&b.kv, &b.rings, b.vocab), "{case}");
            }
            (result, expected) => panic!("{case}: {:?} and {expected:?}", result.map(|b| b.len())),
        }
    }
    assert_eq!(told_of.len(), refused.len(), "{told_of:?}");
}
