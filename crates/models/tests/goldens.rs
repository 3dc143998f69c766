//! Every golden opens, records and finds its weights, and both containers hold the same model.

mod common;

use std::collections::HashMap;

use common::{CASES, open, tests};
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
            (info.bos, info.eos, info.architecture) = (None, vec![], "");
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
