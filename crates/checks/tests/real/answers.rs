//! A published checkpoint against answers computed in float32 from their dequantised weights.
//!
//! The answers are a JSON file: `text_ids` and `text_nll` (negative log-likelihood of every id of a text but the first,
//! all in one window), `prompts` with `ids`, the `greedy` continuation and its `gap` between the best two logits.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use engine::sampling::negative_log_likelihood;
use engine::{Engine, EngineOptions, Event, Request, Task};
use graph::backend::{Backend, KvType, Precision};
use gristmill_checks::{CheckError, drive};
use models::Model;
use serde::Deserialize;

/// A greedy choice counts where the best two logits of the answer are further apart.
const CLEAR: f64 = 0.5;

#[derive(Deserialize)]
struct Answers {
    prompts: Vec<Prompt>,
    text_ids: Vec<u32>,
    text_nll: Vec<f64>,
}

#[derive(Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    gap: Vec<f64>,
}

/// Kernel class, and how keys and values are kept where it is not as the class has them.
pub(crate) type Class = (Precision, Option<KvType>);

/// What was found of one checkpoint in one class.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Report {
    pub(crate) class: Class,
    /// Perplexity of the text.
    pub(crate) perplexity: f64,
    /// The one expected.
    pub(crate) expected: f64,
    /// Greedy choices that were clear.
    pub(crate) clear: usize,
    /// Of these, the ones made otherwise.
    pub(crate) wrong: usize,
}

impl Report {
    /// Relative distance of the perplexities.
    pub(crate) fn deviation(&self) -> f64 {
        (self.perplexity / self.expected - 1.0).abs()
    }

    /// True when the perplexity is within 0.1 % (exact) or 1 % (fast) and every clear choice is the same.
    pub(crate) fn passed(&self) -> bool {
        let bound = if self.class == (Precision::Exact, None) { 1e-3 } else { 1e-2 };
        self.deviation() <= bound && self.wrong == 0 && self.clear > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { class: (precision, kv_type), perplexity, expected, clear, wrong } = self;
        let percent = 100.0 * self.deviation();
        write!(
            f,
            "{precision:?}{}: perplexity {perplexity:.4} ({expected:.4} in float32, {percent:.3} % off), \
             {wrong} of {clear} clear greedy choices differ",
            kv_type.map_or(String::new(), |kv| format!(", KV cache of {kv}"))
        )
    }
}

/// How much of the answers is checked: a device in software takes seconds for a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Ids at the beginning of the text, at least 2.
    pub(crate) text: usize,
    /// Prompts.
    pub(crate) prompts: usize,
}

impl Extent {
    /// All there is.
    pub(crate) const WHOLE: Extent = Extent { text: usize::MAX, prompts: usize::MAX };
}

/// Checks a model against the answers in a file.
///
/// # Errors
/// A file that is missing or damaged, a model or device that cannot be used.
pub(crate) fn check(
    backend: Arc<dyn Backend>,
    model: Arc<Model>,
    answers: &Path,
    class: Class,
    extent: Extent,
) -> Result<Report, CheckError> {
    let wrong = |e: &dyn fmt::Display| CheckError::Case { path: answers.to_owned(), problem: e.to_string() };
    let json = std::fs::read(answers).map_err(|e| wrong(&e))?;
    let mut answers: Answers = serde_json::from_slice(&json).map_err(|e| wrong(&e))?;
    answers.text_ids.truncate(extent.text);
    answers.text_nll.truncate(extent.text - 1);
    answers.prompts.truncate(extent.prompts);
    let options = EngineOptions {
        precision: Some(class.0),
        kv_type: class.1,
        context: Some(answers.text_ids.len().max(256)),
        max_sequences: 1,
        ..EngineOptions::default()
    };
    let vocab = model.info().vocab;
    let mut engine = Engine::new(model, vec![backend], &options, &mut |_, _| {})?;

    let mut total = 0.0;
    score(&mut engine, &answers.text_ids, 0, vocab, |position, row| {
        // The last id predicts nothing that is known.
        if let Some(next) = answers.text_ids.get(position + 1) {
            total += negative_log_likelihood(row, *next);
        }
    })?;
    let mean = |sum: f64| (sum / answers.text_nll.len() as f64).exp();
    let (perplexity, expected) = (mean(total), mean(answers.text_nll.iter().sum()));

    let (mut clear, mut differ) = (0, 0);
    for prompt in &answers.prompts {
        let ids = [&prompt.ids[..], &prompt.greedy].concat();
        let first = prompt.ids.len() - 1;
        score(&mut engine, &ids, first, vocab, |position, row| {
            let step = position - first;
            if prompt.gap.get(step).is_some_and(|gap| *gap > CLEAR) {
                let best = row.iter().enumerate().fold(0, |b, (i, v)| if *v > row[b] { i } else { b });
                clear += 1;
                differ += usize::from(best != prompt.greedy[step] as usize);
            }
        })?;
    }
    Ok(Report { class, perplexity, expected, clear, wrong: differ })
}

/// Calls `each` with the position and logits of every row from `from` on.
fn score(
    engine: &mut Engine,
    ids: &[u32],
    from: usize,
    vocab: usize,
    mut each: impl FnMut(usize, &[f32]),
) -> Result<(), CheckError> {
    engine.submit(Request { prompt: ids.to_vec(), task: Task::Score { from }, session: None })?;
    drive(engine, |event| {
        if let Event::Scores { first, logits, .. } = event {
            logits.chunks_exact(vocab).enumerate().for_each(|(i, row)| each(first + i, row));
        }
        matches!(event, Event::Finished { .. })
    })
}
