//! Whole models against the answers of transformers, on any backend.
//!
//! A golden is a folder of `tests/goldens`: its README says what the files hold and how the bounds come about. The prompt
//! goes through one plan with taps, logits and hidden states are compared, then 16 tokens are continued greedily over
//! the cache.

use std::path::Path;
use std::sync::Arc;

use formats::safetensors::SafetensorsFile;
use formats::{Bytes, Checkpoint};
use graph::backend::{Backend, Bindings, CompileOptions, DeviceError, Instance, StateDesc, StepInputs};
use graph::{Graph, PortKind};
use models::{Model, StepLimits};
use serde_json::Value;
use tensor::ops::{KV_BLOCK, NO_SNAP, Precision};
use tensor::{DType, blocks};

/// Why a golden could not be tried.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GoldenError {
    /// A file of the golden is missing or does not say what it must.
    #[error("golden {path}: {problem}")]
    File {
        /// The file or folder.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The checkpoint does not open as a model.
    #[error("{path}: {problem}")]
    Model {
        /// The checkpoint.
        path: String,
        /// What the reader said.
        problem: String,
    },
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// How far one tensor lies from the golden.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// `logits`, `hidden.{i}`, `hidden.final` or `greedy_logits`.
    pub tensor: String,
    /// The largest error.
    pub error: f32,
    /// What it may be.
    pub bound: f32,
}

/// What came of one golden.
#[derive(Clone, Debug, Default)]
pub struct GoldenReport {
    /// By tensor.
    pub deviations: Vec<Deviation>,
    /// Greedy tokens compared: up to the first step whose gap is smaller than the error seen.
    pub steps: usize,
    /// What is wrong, in words.
    pub failures: Vec<String>,
}

impl GoldenReport {
    /// The largest error as a share of its bound.
    pub fn worst(&self) -> f32 {
        self.deviations.iter().map(|d| d.error / d.bound).fold(0.0, f32::max)
    }

    fn compare(&mut self, tensor: &str, have: &[f32], want: &[f32], bound: f32) -> f32 {
        if have.len() != want.len() {
            self.failures.push(format!("{tensor} has {} elements, must have {}", have.len(), want.len()));
            return f32::INFINITY;
        }
        // A NaN is as wrong as can be.
        let off = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
        let error = have.iter().zip(want).map(off).fold(0.0, f32::max);
        if error > bound {
            self.failures.push(format!("{tensor} is off by {error:.2e}, allowed are {bound:.2e}"));
        }
        self.deviations.push(Deviation { tensor: tensor.to_owned(), error, bound });
        error
    }
}

/// The expected values of a golden.
struct Golden {
    path: String,
    file: SafetensorsFile,
    notes: Value,
}

impl Golden {
    fn open(dir: &Path) -> Result<Golden, GoldenError> {
        let path = dir.display().to_string();
        let refuse = |problem: String| GoldenError::File { path: path.clone(), problem };
        let read = |name: &str| std::fs::read(dir.join(name)).map_err(|e| refuse(format!("{name}: {e}")));
        let file = SafetensorsFile::new(Bytes::from(read("expected.safetensors")?))
            .map_err(|e| refuse(e.to_string()))?;
        let notes = serde_json::from_slice(&read("expected.json")?).map_err(|e| refuse(e.to_string()))?;
        Ok(Golden { path, file, notes })
    }

    fn refuse<T>(&self, problem: String) -> Result<T, GoldenError> {
        Err(GoldenError::File { path: self.path.clone(), problem })
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, GoldenError> {
        let Some((info, bytes)) = self.file.tensor(name).filter(|(info, _)| info.dtype() == Some(DType::F32))
        else {
            return self.refuse(format!("holds no F32 tensor `{name}`"));
        };
        let mut values = vec![0.0; info.shape.iter().product()];
        match blocks::decode(DType::F32, bytes, &mut values) {
            Ok(()) => Ok(values),
            Err(e) => self.refuse(format!("{name}: {e}")),
        }
    }

    fn list(&self, key: &str) -> Result<Vec<f64>, GoldenError> {
        let list = self.notes[key].as_array().and_then(|l| l.iter().map(Value::as_f64).collect());
        list.map_or_else(|| self.refuse(format!("expected.json has no list `{key}`")), Ok)
    }

    fn number(&self, key: &str) -> Result<f32, GoldenError> {
        let number = self.notes[key].as_f64();
        number.map_or_else(|| self.refuse(format!("expected.json has no number `{key}`")), |n| Ok(n as f32))
    }
}

/// One sequence of a model on a device.
struct Runner<'a> {
    backend: &'a dyn Backend,
    model: Model,
    bindings: Bindings,
    limits: StepLimits,
}

impl<'a> Runner<'a> {
    fn new(backend: &'a dyn Backend, model: Model, positions: usize) -> Runner<'a> {
        let pages = positions.div_ceil(KV_BLOCK);
        let limits = StepLimits { rows: 1, seqs: 1, outs: 1, pages, blocks: pages + 1, slots: 2 };
        Runner { backend, model, bindings: Bindings::default(), limits }
    }

    /// An instance for steps of `rows` rows. The first one packs the weights and allocates the states.
    fn instance(&mut self, rows: usize, taps: bool) -> Result<(Graph, Box<dyn Instance>), GoldenError> {
        let limits = StepLimits { rows, outs: rows, ..self.limits };
        let failed = |e: models::ModelError| GoldenError::Model {
            path: self.model.info().name.clone(),
            problem: e.to_string(),
        };
        let mut graph = self.model.record(&limits, DType::F32, taps).map_err(failed)?;
        graph::rewrite::standard(&mut graph);
        for rows in self.model.weights(&graph).map_err(failed)? {
            if !self.bindings.weights.contains_key(&rows.desc().name) {
                let handle = self.backend.weight(rows.desc(), &rows)?;
                self.bindings.weights.insert(rows.desc().name.clone(), handle);
            }
        }
        for port in graph.ports.iter().filter(|p| p.kind == PortKind::State) {
            if !self.bindings.states.contains_key(&port.name) {
                let desc = StateDesc { name: port.name.clone(), dtype: port.dtype, shape: port.shape };
                self.bindings.states.insert(port.name.clone(), self.backend.state(&desc)?);
            }
        }
        let options = CompileOptions { label: format!("golden of {rows} rows"), precision: Precision::Exact };
        let instance = self.backend.compile(&graph, &options)?.instance(&self.bindings)?;
        Ok((graph, instance))
    }

    /// Runs the tokens at these positions.
    fn step(
        &self,
        graph: &Graph,
        instance: &mut dyn Instance,
        ids: &[u32],
        first: usize,
    ) -> Result<(), GoldenError> {
        let rows = ids.len();
        let pos: Vec<u32> = (first..first + rows).map(|p| p as u32).collect();
        let until: Vec<u32> = pos.iter().map(|p| p + 1).collect();
        let out_rows: Vec<u32> = (0..rows as u32).collect();
        // Blocks in reverse, so that none follows its predecessor.
        let pages: Vec<u32> = (1..=self.limits.pages as u32).rev().collect();
        let mut snap = vec![NO_SNAP; rows];
        snap[rows - 1] = 1;
        let inputs: [(&str, &[u32]); 8] = [
            ("ids", ids),
            ("pos", &pos),
            ("until", &until),
            ("snap", &snap),
            ("extents", &[rows as u32]),
            ("slots", &[1]),
            ("pages", &pages),
            ("out_rows", &out_rows),
        ];
        let used: Vec<_> = inputs.into_iter().filter(|(name, _)| graph.find_port(name).is_some()).collect();
        let scalars: [(&str, u32); 3] = [("rows", rows as u32), ("seqs", 1), ("outs", rows as u32)];
        let used_scalars: Vec<_> =
            scalars.into_iter().filter(|(name, _)| graph.scalars.iter().any(|s| s == name)).collect();
        let encoded = instance.encode(&StepInputs { inputs: &used, floats: &[], scalars: &used_scalars })?;
        Ok(pollster::block_on(instance.submit(encoded))?)
    }
}

/// Tries a golden on a backend in [`Precision::Exact`]. `checkpoint` is the folder itself or the same model as GGUF.
///
/// # Errors
/// Files that are missing or malformed, a model that is not supported, a device that refuses. A wrong answer is no
/// error: the report says what is wrong.
pub fn check(backend: &dyn Backend, dir: &Path, checkpoint: &Path) -> Result<GoldenReport, GoldenError> {
    let golden = Golden::open(dir)?;
    let failed = |problem: String| GoldenError::Model { path: checkpoint.display().to_string(), problem };
    let opened = Checkpoint::open(checkpoint).map_err(|e| failed(e.to_string()))?;
    let model = Model::open(Arc::new(opened)).map_err(|e| failed(e.to_string()))?;
    let ids = |key| golden.list(key).map(|l| l.iter().map(|id| *id as u32).collect::<Vec<u32>>());
    let (prompt, greedy, gaps) = (ids("input_ids")?, ids("greedy_ids")?, golden.list("greedy_gap")?);
    let vocab = model.info().vocab;
    let layers = model.info().layers;
    if prompt.is_empty() || greedy.is_empty() || greedy.len() != gaps.len() {
        return golden.refuse("expected.json has no prompt, or not a gap for every greedy token".to_owned());
    }
    let largest = golden.number("logit_absmax")?;
    let limit = 2e-5 * largest + 10.0 * golden.number("noise_1e-07")?;

    let mut report = GoldenReport::default();
    let mut runner = Runner::new(backend, model, prompt.len() + greedy.len());
    let (graph, mut instance) = runner.instance(prompt.len(), true)?;
    runner.step(&graph, &mut *instance, &prompt, 0)?;
    let mut seen = report.compare("logits", instance.output("logits")?, &golden.floats("logits")?, limit);
    for name in (0..=layers).map(|i| format!("hidden.{i}")).chain(["hidden.final".to_owned()]) {
        let want = golden.floats(&name)?;
        let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        report.compare(&name, instance.output(&name)?, &want, limit * (size / largest).max(1.0));
    }
    let logits = instance.output("logits")?;
    let mut row = logits[logits.len().saturating_sub(vocab)..].to_vec();
    let want = golden.floats("greedy_logits")?;
    if want.len() != greedy.len() * vocab {
        return golden.refuse(format!(
            "greedy_logits has {} elements, not {} rows of {vocab}",
            want.len(),
            greedy.len()
        ));
    }
    let (graph, mut instance) = runner.instance(1, false)?;
    let mut have = vec![];
    for (step, token) in greedy.iter().enumerate() {
        have.extend_from_slice(&row);
        let error = row.iter().zip(&want[step * vocab..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        seen = seen.max(error);
        if gaps[step] <= f64::from(seen) {
            break;
        }
        let chosen = argmax(&row);
        if chosen != *token {
            report.failures.push(format!("greedy token {step} is {chosen}, must be {token}"));
            break;
        }
        report.steps += 1;
        if report.steps < greedy.len() {
            runner.step(&graph, &mut *instance, &[chosen], prompt.len() + step)?;
            row = instance.output("logits")?.to_vec();
        }
    }
    report.compare("greedy_logits", &have, &want[..have.len()], limit);
    Ok(report)
}

/// The largest element, ties to the lowest index.
fn argmax(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (i, v)| if *v > best.1 { (i, *v) } else { best });
    best.0 as u32
}
