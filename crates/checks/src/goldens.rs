//! Answers compared with those of an independent implementation.
//!
//! A golden is a folder with a tiny checkpoint, `expected.safetensors` (logits of every position of a prompt, the hidden
//! state after every layer, a cached greedy continuation, computed in float32) and `expected.json` (the scale of the
//! logits and how far they move when the weights move a little). The engine runs the prompt in exact precision.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::sampling::SamplingOptions;
use engine::{Engine, EngineOptions, Event, Request, Task};
use formats::Bytes;
use formats::safetensors::SafetensorsFile;
use graph::backend::{Backend, Precision};
use models::{HIDDEN_FINAL, LOGITS, Model};
use serde::Deserialize;

use crate::drive::{drive, open_model};
use crate::error::CheckError;

/// The goldens of the families that there are.
pub const CASES: &[&str] = &[
    "llama",
    "llama3_rope",
    "llama_linear_rope",
    "llama_yarn",
    "mistral",
    "mistral_nowindow",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "qwen3_moe",
    "lfm2",
];

/// How many times the CPU's bound a GPU may err: its transcendental functions and divisions are of a few more units in
/// the last place than a CPU's, and add up over the layers.
pub const GPU_FACTOR: f64 = 10.0;

/// One tensor against its golden.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorLine {
    /// `hidden.{i}`, `hidden.final`, `logits`, `greedy_logits`.
    pub name: String,
    /// The largest error as a share of the bound; infinite for values that are missing or not finite.
    pub worst: f64,
    /// The position of that error.
    pub position: usize,
}

/// What the check of one checkpoint found.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// In the order of the computation.
    pub tensors: Vec<TensorLine>,
    /// Tokens of the continuation compared.
    pub greedy: usize,
    /// The first token that differs: its index, the one expected and the one found.
    pub differs: Option<(usize, u32, u32)>,
}

impl Report {
    /// True when every tensor is within its bound and the continuation is the same.
    pub fn passed(&self) -> bool {
        self.greedy > 0 && self.differs.is_none() && self.first_failure().is_none()
    }

    /// The first tensor, in the order of the computation, that is out of bounds.
    pub fn first_failure(&self) -> Option<&TensorLine> {
        self.tensors.iter().find(|t| t.worst.is_nan() || t.worst > 1.0)
    }

    /// The largest error of all, as a share of its bound.
    pub fn worst(&self) -> f64 {
        self.tensors.iter().map(|t| t.worst).fold(0.0, f64::max)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worst {:.3} of the bound", self.worst())?;
        for t in &self.tensors {
            write!(f, ", {} {:.3}", t.name, t.worst)?;
        }
        if let Some(t) = self.first_failure() {
            write!(f, "; first out of bounds: {} at position {}", t.name, t.position)?;
        }
        match self.differs {
            None => write!(f, "; {} greedy tokens the same", self.greedy),
            Some((i, want, got)) => write!(f, "; greedy token {i} is {got}, {want} expected"),
        }
    }
}

/// `expected.json`, as far as the check needs it.
#[derive(Deserialize)]
struct Scales {
    logit_absmax: f64,
    #[serde(rename = "noise_1e-07")]
    noise: f64,
    greedy_gap: Vec<f64>,
}

/// The answers of a golden.
struct Golden {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    scales: Scales,
    file: SafetensorsFile,
    path: PathBuf,
    /// What the bounds are multiplied with.
    factor: f64,
}

impl Golden {
    fn open(dir: &Path, factor: f64) -> Result<Golden, CheckError> {
        let path = dir.join("expected.json");
        let wrong = |problem: &dyn fmt::Display| CheckError::Case {
            path: path.clone(),
            problem: problem.to_string(),
        };
        let json = std::fs::read(&path).map_err(|e| wrong(&e))?;
        let scales = serde_json::from_slice(&json).map_err(|e| wrong(&e))?;
        let path = dir.join("expected.safetensors");
        let wrong = |problem: &dyn fmt::Display| CheckError::Case {
            path: path.clone(),
            problem: problem.to_string(),
        };
        let bytes = Bytes::map(&path).map_err(|e| wrong(&e))?;
        let file = SafetensorsFile::new(bytes).map_err(|e| wrong(&e))?;
        let mut golden = Golden { prompt: vec![], greedy: vec![], scales, file, path, factor };
        golden.prompt = golden.ids("input_ids")?;
        golden.greedy = golden.ids("greedy_ids")?;
        Ok(golden)
    }

    fn wrong(&self, name: &str, problem: &str) -> CheckError {
        CheckError::Case { path: self.path.clone(), problem: format!("tensor `{name}` {problem}") }
    }

    fn bytes(&self, name: &str, type_name: &str) -> Result<&[u8], CheckError> {
        match self.file.tensor(name) {
            None => Err(self.wrong(name, "is missing")),
            Some((info, _)) if info.type_name != type_name => {
                Err(self.wrong(name, &format!("is {}, {type_name} expected", info.type_name)))
            }
            Some((_, bytes)) => Ok(bytes),
        }
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>, CheckError> {
        let (ids, _) = self.bytes(name, "I64")?.as_chunks::<8>();
        let id = |b: &[u8; 8]| u32::try_from(i64::from_le_bytes(*b));
        ids.iter().map(id).collect::<Result<_, _>>().map_err(|_| self.wrong(name, "holds what is no token"))
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, CheckError> {
        let (floats, _) = self.bytes(name, "F32")?.as_chunks::<4>();
        Ok(floats.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// The error allowed in a tensor: that of the logits, scaled with the values where they are larger.
    fn bound(&self, values: &[f32]) -> f64 {
        let limit = self.factor * (2e-5 * self.scales.logit_absmax + 10.0 * self.scales.noise);
        let largest = values.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
        limit * (largest / self.scales.logit_absmax).max(1.0)
    }

    /// Compares the rows found, by position counted from `first`, with a tensor.
    fn compare(&self, name: &str, first: usize, found: &Rows) -> Result<TensorLine, CheckError> {
        let expected = self.floats(name)?;
        let rows = self.file.tensor(name).and_then(|(info, _)| info.shape.first().copied()).unwrap_or(0);
        if rows == 0 {
            return Err(self.wrong(name, "is empty"));
        }
        let bound = self.bound(&expected);
        let (mut worst, mut position) = (0.0f64, first);
        for (i, want) in expected.chunks_exact(expected.len() / rows).enumerate() {
            let got = found.get(&(first + i)).filter(|got| got.len() == want.len());
            let error = got.map_or(f64::INFINITY, |got| {
                let errors = got.iter().zip(want).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
                // A NaN must not be lost on the way.
                errors.fold(0.0, |m, e| if e.is_finite() { f64::max(m, e) } else { f64::INFINITY })
            });
            if error > worst {
                (worst, position) = (error, first + i);
            }
        }
        Ok(TensorLine { name: name.to_owned(), worst: worst / bound, position })
    }
}

/// Checks a checkpoint, in either container, against the golden in `golden_dir`. `factor` is what the bounds are multiplied
/// with: 1 for a CPU, [`GPU_FACTOR`] for a GPU.
///
/// # Errors
/// Files that are missing or damaged, a model or device that cannot be used.
pub fn check_case(
    backend: Arc<dyn Backend>,
    checkpoint: &Path,
    golden_dir: &Path,
    factor: f64,
) -> Result<Report, CheckError> {
    let golden = Golden::open(golden_dir, factor)?;
    check_model(backend, open_model(checkpoint)?, &golden)
}

fn check_model(backend: Arc<dyn Backend>, model: Arc<Model>, golden: &Golden) -> Result<Report, CheckError> {
    let (layers, hidden, vocab) = (model.info().layers, model.info().hidden, model.info().vocab);
    let options =
        EngineOptions { precision: Some(Precision::Exact), taps: true, logits: true, ..Default::default() };
    let mut engine = Engine::new(model, vec![backend], &options, &mut |_, _| {})?;

    let mut found: BTreeMap<String, Rows> = BTreeMap::new();
    engine.submit(Request { prompt: golden.prompt.clone(), task: Task::Score { from: 0 }, session: None })?;
    drive(&mut engine, |event| {
        match event {
            Event::Scores { first, logits, .. } => put(&mut found, LOGITS, *first, logits, vocab),
            Event::Hidden { name, first, rows, .. } => put(&mut found, name, *first, rows, hidden),
            _ => {}
        }
        matches!(event, Event::Finished { .. })
    })?;
    let names = (0..=layers).map(models::hidden).chain([HIDDEN_FINAL.into(), LOGITS.into()]);
    let mut tensors = vec![];
    for name in names {
        tensors.push(golden.compare(&name, 0, found.get(&name).unwrap_or(&Rows::new()))?);
    }

    let (mut tokens, mut drawn_from) = (vec![], BTreeMap::new());
    let task = Task::Generate {
        max_tokens: Some(golden.greedy.len()),
        sampling: SamplingOptions::default(),
        entropy: 0,
        stop: vec![],
    };
    engine.submit(Request { prompt: golden.prompt.clone(), task, session: None })?;
    drive(&mut engine, |event| {
        match event {
            Event::Token { token, .. } => tokens.push(token.id),
            Event::Scores { first, logits, .. } => put(&mut drawn_from, "", *first, logits, vocab),
            _ => {}
        }
        matches!(event, Event::Finished { .. })
    })?;
    let drawn_from = drawn_from.remove("").unwrap_or_default();
    let first = golden.prompt.len() - 1;
    // Where the best two are closer than two errors within the bound, either is right, and what follows is another text.
    let error = 2.0 * golden.bound(&golden.floats("greedy_logits")?);
    let decided = golden.scales.greedy_gap.iter().take_while(|gap| **gap > error).count();
    let greedy = decided.min(golden.greedy.len());
    let pairs = golden.greedy.iter().zip(tokens.iter().copied().map(Some).chain(std::iter::repeat(None)));
    let wrong = pairs.enumerate().take(greedy).find(|(_, (want, got))| Some(**want) != *got);
    let differs = wrong.map(|(i, (want, got))| (i, *want, got.unwrap_or(u32::MAX)));
    if greedy == golden.greedy.len() {
        tensors.push(golden.compare("greedy_logits", first, &drawn_from)?);
    }
    Ok(Report { tensors, greedy, differs })
}

/// Rows by position.
type Rows = BTreeMap<usize, Vec<f32>>;

fn put(found: &mut BTreeMap<String, Rows>, name: &str, first: usize, rows: &[f32], width: usize) {
    let rows = rows.chunks_exact(width).enumerate().map(|(i, row)| (first + i, row.to_vec()));
    found.entry(name.to_owned()).or_default().extend(rows);
}
