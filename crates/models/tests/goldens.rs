//! Every golden opens, records and finds its weights, and both containers hold the same model.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use checks::goldens::CASES;
use common::{open, tests};
use formats::Checkpoint;
use formats::gguf::{GgmlType, GgufWriter, Value};
use graph::backend::RowSource;
use gristmill_models::{Model, StepLimits, WeightRows};
use tensor::{DType, blocks};

const LIMITS: StepLimits = StepLimits { rows: 8, seqs: 3, outs: 4, pages: 5, blocks: 16, slots: 6 };

/// All weights of a model as f32, by port.
fn decoded(model: &Model) -> HashMap<String, (Vec<usize>, Vec<f32>)> {
    let mut graph = model.record(&LIMITS, DType::F32, true).unwrap();
    graph::rewrite::standard(&mut graph);
    let weights = model.weights(&graph).unwrap();
    let decode = |w: &WeightRows| {
        let shape = w.desc().shape;
        let mut values = vec![f32::NAN; shape.elements()];
        let mut next = 0;
        w.rows(0..shape.rows(), &mut |row, bytes| {
            assert_eq!(row, next);
            next += 1;
            let width = shape.last();
            blocks::decode(w.desc().dtype, bytes, &mut values[row * width..(row + 1) * width]).unwrap();
        })
        .unwrap();
        assert_eq!(next, shape.rows());
        (w.desc().name.clone(), (shape.dims().to_vec(), values))
    };
    weights.iter().map(decode).collect()
}

#[test]
fn both_containers_hold_the_same_model() {
    for case in CASES {
        let hf = open(&tests().join("goldens").join(case));
        let gguf = open(&tests().join(format!("goldens-gguf/{case}.gguf")));
        let strip = |m: &Model| {
            let mut info = m.info().clone();
            info.name = String::new();
            info.architecture = "";
            info
        };
        assert_eq!(strip(&hf), strip(&gguf), "{case}");
        let (a, b) = (decoded(&hf), decoded(&gguf));
        assert_eq!(a.len(), b.len());
        for (port, (shape, values)) in &a {
            let (other_shape, other) = b.get(port).unwrap_or_else(|| panic!("{case}: {port}"));
            assert_eq!(shape, other_shape, "{case} {port}");
            // The divisors of Llama 3.1 in GGUF are rounded; everything else is exact.
            let bound = if *case == "llama3_rope" && port == "rope.inv_freq" { 2e-7 } else { 0.0 };
            for (x, y) in values.iter().zip(other) {
                assert!((x - y).abs() <= bound * x.abs(), "{case} {port}: {x} and {y}");
            }
        }
    }
}

/// The biases of q and k are stored in the order of the rows of their matrices, in GGUF too.
#[test]
fn biases_are_the_same_from_gguf() {
    let dir = tests().join("fixtures/models/llama_biases");
    let hf = Checkpoint::open(&dir).unwrap();
    let stems = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    let mut writer = GgufWriter::new();
    let tensors: Vec<_> = hf.tensor_names().map(|name| hf.tensor(name).unwrap()).collect();
    let f16 = GgmlType::from_id(1).unwrap();
    let mut permuted = vec![];
    for t in &tensors {
        let name = stems.iter().fold(t.name.to_owned(), |n, (from, to)| n.replace(from, to));
        let mut bytes = t.bytes.to_vec();
        if name.contains("attn_q.") || name.contains("attn_k.") {
            let row = bytes.len() / t.shape[0];
            let (head, half) = (12, 6);
            for h in 0..t.shape[0] / head {
                for i in 0..head {
                    let to = h * head + i % half * 2 + i / half;
                    let from = (h * head + i) * row;
                    bytes[to * row..(to + 1) * row].copy_from_slice(&t.bytes[from..from + row]);
                }
            }
        }
        permuted.push((name, t.shape.clone(), bytes));
    }
    for (name, shape, bytes) in &permuted {
        writer.tensor(name, f16, shape, bytes).unwrap();
    }
    writer.metadata("general.architecture", Value::String("llama".to_owned()));
    let counts = [
        ("block_count", 2),
        ("context_length", 256),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("attention.key_length", 12),
        ("attention.value_length", 12),
    ];
    for (key, value) in counts {
        writer.metadata(&format!("llama.{key}"), Value::U32(value));
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    let gguf = Checkpoint::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let gguf = Model::open(Arc::new(gguf)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(decoded(&open(&dir)), decoded(&gguf));
}
