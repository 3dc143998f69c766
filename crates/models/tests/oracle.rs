//! Whole models on the reference device against the answers of transformers: logits and hidden states of the prompt, then
//! a greedy continuation over the cache.

mod common;

use std::collections::HashMap;
use std::path::Path;

use checks::goldens::CASES;
use common::{open, tests};
use conformance::ReferenceBackend;
use formats::Bytes;
use formats::safetensors::SafetensorsFile;
use graph::backend::{Backend, Bindings, CompileOptions, Instance, Precision, StateDesc, StepInputs};
use graph::{Graph, PortKind};
use gristmill_models::{Model, StepLimits};
use tensor::ops::NO_SNAP;
use tensor::{DType, blocks};

/// The expected outputs of a case.
struct Expected {
    file: SafetensorsFile,
    notes: serde_json::Value,
}

impl Expected {
    fn open(dir: &Path) -> Expected {
        let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
        let file = SafetensorsFile::new(Bytes::from(bytes)).unwrap();
        let notes = serde_json::from_slice(&std::fs::read(dir.join("expected.json")).unwrap()).unwrap();
        Expected { file, notes }
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let (info, bytes) = self.file.tensor(name).unwrap();
        let mut values = vec![0.0; info.shape.iter().product()];
        blocks::decode(DType::F32, bytes, &mut values).unwrap();
        values
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.notes[name].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    }

    /// The bound the goldens' README gives for a tensor.
    fn bound(&self, name: &str, values: &[f32]) -> f32 {
        let number = |key| self.notes[key].as_f64().unwrap() as f32;
        let largest = number("logit_absmax");
        let limit = 2e-5 * largest + 10.0 * number("noise_1e-07");
        match name {
            "logits" => limit,
            _ => limit * (values.iter().fold(0.0, |m: f32, v| m.max(v.abs())) / largest).max(1.0),
        }
    }
}

struct Runner {
    model: Model,
    backend: ReferenceBackend,
    bindings: Bindings,
    limits: StepLimits,
}

impl Runner {
    fn new(model: Model, context: usize) -> Runner {
        let pages = context.div_ceil(16);
        let limits = StepLimits { rows: 1, seqs: 1, outs: 1, pages, blocks: pages + 1, slots: 3 };
        Runner { model, backend: ReferenceBackend::new(), bindings: Bindings::default(), limits }
    }

    /// A plan for steps of `rows`; the first one loads the weights and makes the states.
    fn instance(&mut self, rows: usize, taps: bool) -> (Graph, Box<dyn Instance>) {
        let limits = StepLimits { rows, outs: rows, ..self.limits };
        let mut graph = self.model.record(&limits, DType::F32, taps).unwrap();
        graph::rewrite::standard(&mut graph);
        if self.bindings.weights.is_empty() {
            for rows in self.model.weights(&graph).unwrap() {
                let weight = self.backend.weight(rows.desc(), &rows).unwrap();
                self.bindings.weights.insert(rows.desc().name.clone(), weight);
            }
            for port in graph.ports.iter().filter(|p| p.kind == PortKind::State) {
                let desc = StateDesc { name: port.name.clone(), dtype: port.dtype, shape: port.shape };
                self.bindings.states.insert(port.name.clone(), self.backend.state(&desc).unwrap());
            }
        }
        let options =
            CompileOptions { label: "test".to_owned(), precision: Precision::Exact, profile: false };
        let plan = self.backend.compile(&graph, &options).unwrap();
        (graph, plan.instance(&self.bindings).unwrap())
    }

    /// Runs `ids` from position `start` and gives the outputs by name.
    fn step(&mut self, ids: &[u32], start: usize, taps: bool) -> HashMap<String, Vec<f32>> {
        let (graph, mut instance) = self.instance(ids.len(), taps);
        let rows = ids.len() as u32;
        let pos: Vec<u32> = (start as u32..start as u32 + rows).collect();
        let until: Vec<u32> = pos.iter().map(|p| p + 1).collect();
        // Not in order, and not from 0.
        let pages: Vec<u32> = (1..=self.limits.pages as u32).rev().collect();
        let mut snap = vec![NO_SNAP; ids.len()];
        snap[ids.len() - 1] = 2;
        let out_rows: Vec<u32> = (0..rows).collect();
        let all: [(&str, &[u32]); 8] = [
            ("ids", ids),
            ("pos", &pos),
            ("until", &until),
            ("extents", &[rows]),
            ("pages", &pages),
            ("slots", &[2]),
            ("snap", &snap),
            ("out_rows", &out_rows),
        ];
        let inputs: Vec<_> = all.into_iter().filter(|(name, _)| graph.find_port(name).is_some()).collect();
        let scalars = [("rows", rows), ("seqs", 1), ("outs", rows)];
        let outputs = graph.ports.iter().filter(|p| p.kind == PortKind::Output).map(|p| p.name.as_str());
        let outputs: Vec<&str> = outputs.collect();
        let step = StepInputs { inputs: &inputs, floats: &[], scalars: &scalars, outputs: &outputs };
        let encoded = instance.encode(&step).unwrap();
        pollster::block_on(instance.submit(encoded)).unwrap();
        outputs.iter().map(|name| ((*name).to_owned(), instance.output(name).unwrap().to_vec())).collect()
    }
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// Largest error over all cases and tensors, as a share of its bound.
fn check(model: Model, answers: &Path) -> f32 {
    let expected = Expected::open(answers);
    let case = answers.display();
    let (prompt, greedy) = (expected.ids("input_ids"), expected.ids("greedy_ids"));
    let mut runner = Runner::new(model, prompt.len() + greedy.len());
    let found = runner.step(&prompt, 0, true);
    assert_eq!(found.len(), runner.model.info().layers + 3, "{case}");
    let mut worst: f32 = 0.0;
    for (name, values) in &found {
        let want = expected.floats(name);
        assert_eq!(values.len(), want.len(), "{case} {name}");
        let error = values.iter().zip(&want).fold(0.0, |m: f32, (a, b)| m.max((a - b).abs()));
        let share = error / expected.bound(name, &want);
        assert!(share <= 1.0, "{case} {name}: error {error}, {share} of the bound");
        worst = worst.max(share);
    }
    let vocab = runner.model.info().vocab;
    let mut next = argmax(&found["logits"][(prompt.len() - 1) * vocab..]);
    for (i, want) in greedy.iter().enumerate() {
        assert_eq!(next, *want, "{case}: greedy token {i}");
        next = argmax(&runner.step(&[next], prompt.len() + i, false)["logits"]);
    }
    worst
}

#[test]
fn safetensors_give_the_answers() {
    for case in CASES {
        let dir = tests().join("goldens").join(case);
        println!("{case}: {:.3} of the bound", check(open(&dir), &dir));
    }
}

#[test]
fn gguf_gives_the_answers() {
    for case in CASES {
        let path = tests().join(format!("goldens-gguf/{case}.gguf"));
        let answers = tests().join("goldens").join(case);
        println!("{case}: {:.3} of the bound", check(open(&path), &answers));
    }
}

/// Flags that the goldens leave at rest.
#[test]
fn variants_give_the_answers() {
    let mut count = 0;
    for entry in std::fs::read_dir(tests().join("fixtures/models")).unwrap() {
        let dir = entry.unwrap().path();
        println!("{}: {:.3} of the bound", dir.display(), check(open(&dir), &dir));
        count += 1;
    }
    assert_eq!(count, 19);
}
