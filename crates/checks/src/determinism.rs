//! The same request gives the same bits.
//!
//! Every property compares logits, position by position and bit by bit, with those of the request alone in a new engine
//! on one thread. A control repeats the comparison on a device with a fault that the property forbids and must see it.

mod sessions;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;

use engine::sampling::SamplingOptions;
use engine::{Engine, EngineOptions, Event, Request, RequestId, Task};
use graph::Stream;
use graph::backend::{Backend, KvType, Precision};
use models::Model;
use tensor::ops::KV_BLOCK;

use crate::drive::drive;
use crate::error::CheckError;
use crate::faults::{Fault, FaultyBackend};

/// Opens the device with so many threads.
pub type MakeBackend<'a> = &'a dyn Fn(usize) -> Arc<dyn Backend>;

/// The shortest longest prompt: above the longest of the others, and above a cut of recurrent models, so that chunks of
/// one cut and a whole prompt are different steps.
pub const LEAST_PROMPT: usize = models::RECURRENT_CHUNK + 1;

/// The fewest tokens generated: others join between the first and the last.
pub const LEAST_TOKENS: usize = 2;

/// How thorough a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Kernel class.
    pub precision: Precision,
    /// How keys and values are kept, where it is not as the kernel class has them.
    pub kv_type: Option<KvType>,
    /// Tokens of the longest prompt, at least [`LEAST_PROMPT`]; the other seven are shorter.
    pub prompt: usize,
    /// Tokens generated after each, at least [`LEAST_TOKENS`].
    pub tokens: usize,
    /// Numbers of threads whose answers are compared; of a GPU, devices that are opened.
    pub threads: &'static [usize],
    /// Show for each property that it can fail.
    pub controls: bool,
}

impl Options {
    /// Prompts of up to 200 tokens, 20 generated, on 1, 2 and 3 threads, with controls.
    pub fn new(precision: Precision) -> Options {
        Options { precision, kv_type: None, prompt: 200, tokens: 20, threads: &[1, 2, 3], controls: true }
    }

    /// The shortest requests that try every property, and no controls: for devices that take long.
    pub fn short(self) -> Options {
        Options { prompt: LEAST_PROMPT, tokens: LEAST_TOKENS + 1, controls: false, ..self }
    }

    fn validate(&self) -> Result<(), CheckError> {
        let options = [("prompt", self.prompt, LEAST_PROMPT), ("tokens", self.tokens, LEAST_TOKENS)];
        match options.into_iter().find(|(_, value, least)| value < least) {
            Some((option, value, least)) => Err(CheckError::Option { option, value, least }),
            None => Ok(()),
        }
    }
}

/// What was found of one property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The property.
    pub property: &'static str,
    /// Rows of logits compared.
    pub compared: usize,
    /// The first difference, or what kept the property from being tried.
    pub difference: Option<String>,
    /// Whether the control saw its fault; `None` when it was not asked for.
    pub control: Option<bool>,
}

/// What was found on one model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Device and kernels.
    pub device: String,
    /// Kernel class.
    pub precision: Precision,
    /// One line per property.
    pub lines: Vec<Line>,
}

impl Report {
    /// True when every property holds and every control saw its fault.
    pub fn passed(&self) -> bool {
        !self.lines.is_empty()
            && self.lines.iter().all(|l| l.difference.is_none() && l.control != Some(false))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {:?}", self.device, self.precision)?;
        for line in &self.lines {
            let control = match line.control {
                None => "",
                Some(true) => ", control fails as it must",
                Some(false) => ", CONTROL PASSES: this comparison proves nothing",
            };
            match &line.difference {
                None => writeln!(f, "  ok     {:18} {:5} rows{control}", line.property, line.compared)?,
                Some(difference) => writeln!(f, "  FAILED {:18} {difference}{control}", line.property)?,
            }
        }
        Ok(())
    }
}

/// Runs every property on a model.
///
/// # Errors
/// Options out of range, a model or device that cannot be used, and requests that fail.
pub fn run(make: MakeBackend, model: &Arc<Model>, options: &Options) -> Result<Report, CheckError> {
    options.validate()?;
    let trial = Trial::new(make, model, options)?;
    let mut lines = vec![];
    for (property, check, fault) in PROPERTIES {
        let (compared, difference) = match check(&trial)? {
            Ok(compared) => (compared, None),
            Err(difference) => (0, Some(difference)),
        };
        let control =
            if options.controls { Some(control(make, model, options, *check, *fault)?) } else { None };
        lines.push(Line { property, compared, difference, control });
    }
    Ok(Report { device: make(1).description(), precision: options.precision, lines })
}

/// Whether a property fails on a device with a fault.
fn control(
    make: MakeBackend,
    model: &Arc<Model>,
    options: &Options,
    check: Check,
    fault: Fault,
) -> Result<bool, CheckError> {
    let faulty = |threads| -> Arc<dyn Backend> {
        // The fault that depends on nothing stands for one of the devices that are compared.
        let fault = if fault == Fault::Always && threads < 3 { Fault::None } else { fault };
        Arc::new(FaultyBackend::new(make(threads), fault))
    };
    Ok(check(&Trial::new(&faulty, model, options)?)?.is_err())
}

/// Rows that were compared, or the first difference.
type Outcome = Result<usize, String>;
type Check = fn(&Trial) -> Result<Outcome, CheckError>;

/// Each property, its check, and a fault that the check must see.
const PROPERTIES: &[(&str, Check, Fault)] = &[
    ("threads", |t| t.threads(), Fault::Always),
    ("chunk size", |t| t.chunks(), Fault::KnowsChunk),
    ("neighbours", |t| t.neighbours(), Fault::KnowsNeighbours),
    ("place in the batch", |t| t.places(), Fault::KnowsPlace),
    ("reuse of the cache", |t| t.reuse(), Fault::SeesBlock),
    ("preemption", |t| t.preemption(), Fault::KnowsHistory),
    ("one step ahead", |t| t.ahead(), Fault::LosesDrawn),
    ("sessions", |t| t.sessions(), Fault::SeesBlock),
    ("saved sessions", |t| t.saved_sessions(), Fault::WritesNothing),
];

/// Requests that share an engine, at most.
const SEQUENCES: usize = 8;

/// The request that chunks and threads are tried on: the longest prompt.
const LONGEST: usize = 0;

/// Requests that report the logits of their prompt; the others generate.
const SCORED: [usize; 2] = [6, 7];

/// The request whose tokens no device can draw.
const NEEDS_HOST: usize = 3;

/// How tokens of a request are chosen: most greedily, some by draws that a device can make, one by draws that need the host.
fn sampling(request: usize) -> SamplingOptions {
    let hot = SamplingOptions { temperature: 0.9, seed: Some(request as u64), ..SamplingOptions::default() };
    match request {
        1 => hot,
        2 => SamplingOptions { top_k: Some(30), top_p: 0.9, min_p: 0.01, ..hot },
        NEEDS_HOST => SamplingOptions { repetition_penalty: 1.2, ..hot },
        _ => SamplingOptions::default(),
    }
}

/// Digests of the rows of logits by position, and the tokens generated.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Answer {
    rows: BTreeMap<usize, u64>,
    tokens: Vec<u32>,
}

/// Answers by request, as events come in.
#[derive(Default)]
struct Answers(HashMap<RequestId, Answer>);

impl Answers {
    fn record(&mut self, event: &Event, vocab: usize) {
        match event {
            Event::Scores { id, first, logits } => {
                let rows = logits.chunks_exact(vocab).enumerate().map(|(i, row)| (first + i, digest(row)));
                self.0.entry(*id).or_default().rows.extend(rows);
            }
            Event::Token { id, token } => self.0.entry(*id).or_default().tokens.push(token.id),
            _ => {}
        }
    }

    fn take(&mut self, ids: &[RequestId]) -> Vec<Answer> {
        ids.iter().map(|id| self.0.remove(id).unwrap_or_default()).collect()
    }
}

/// Requests on a device, and their answers when each is alone.
struct Trial<'a> {
    make: MakeBackend<'a>,
    model: &'a Arc<Model>,
    options: &'a Options,
    prompts: Vec<Vec<u32>>,
    alone: Vec<Answer>,
}

impl<'a> Trial<'a> {
    fn new(make: MakeBackend<'a>, model: &'a Arc<Model>, options: &'a Options) -> Result<Self, CheckError> {
        // Ragged, on, below and above the edges of KV blocks and of the cuts of recurrent models.
        let longest = options.prompt;
        let lengths = [longest, 1, 17, 33, longest / 2, 64, 48, longest / 4 + 1];
        let vocab = model.info().vocab;
        let stream = Stream::new(7);
        let token = |request: usize, i: usize| {
            let share = stream.derive(request as u64).draw(i as u64);
            (f64::from(share) * vocab as f64) as u32
        };
        let prompts = lengths.iter().enumerate().map(|(r, n)| (0..*n).map(|i| token(r, i)).collect());
        let prompts = prompts.collect();
        let mut trial = Trial { make, model, options, prompts, alone: vec![] };
        for request in 0..SEQUENCES {
            let answers = trial.ask(&mut trial.engine(make(1), &trial.base())?, &[request])?;
            trial.alone.extend(answers);
        }
        Ok(trial)
    }

    fn base(&self) -> EngineOptions {
        EngineOptions {
            precision: Some(self.options.precision),
            kv_type: self.options.kv_type,
            context: Some(self.options.prompt + self.options.tokens),
            max_sequences: SEQUENCES,
            // Room for several prompts in a step; more would only be padding.
            chunk: 2 * self.options.prompt,
            logits: true,
            ..EngineOptions::default()
        }
    }

    fn engine(&self, backend: Arc<dyn Backend>, options: &EngineOptions) -> Result<Engine, CheckError> {
        Ok(Engine::new(self.model.clone(), vec![backend], options, &mut |_, _| {})?)
    }

    fn submit(&self, engine: &mut Engine, request: usize) -> Result<RequestId, CheckError> {
        let task = if SCORED.contains(&request) {
            Task::Score { from: 0 }
        } else {
            Task::Generate {
                max_tokens: Some(self.options.tokens),
                sampling: sampling(request),
                entropy: 0,
                stop: vec![],
            }
        };
        Ok(engine.submit(Request { prompt: self.prompts[request].clone(), task, session: None })?)
    }

    fn submit_all(&self, engine: &mut Engine, requests: &[usize]) -> Result<Vec<RequestId>, CheckError> {
        requests.iter().map(|request| self.submit(engine, *request)).collect()
    }

    /// Answers of requests that are submitted together.
    fn ask(&self, engine: &mut Engine, requests: &[usize]) -> Result<Vec<Answer>, CheckError> {
        let ids = self.submit_all(engine, requests)?;
        let mut answers = Answers::default();
        self.finish(engine, &mut answers, ids.len())?;
        Ok(answers.take(&ids))
    }

    /// Polls until so many more requests have finished.
    fn finish(&self, engine: &mut Engine, answers: &mut Answers, mut open: usize) -> Result<(), CheckError> {
        let vocab = self.model.info().vocab;
        drive(engine, |event| {
            answers.record(event, vocab);
            open -= usize::from(matches!(event, Event::Finished { .. }));
            open == 0
        })
    }

    /// Polls until a token was generated.
    fn first_token(&self, engine: &mut Engine, answers: &mut Answers) -> Result<(), CheckError> {
        let vocab = self.model.info().vocab;
        drive(engine, |event| {
            answers.record(event, vocab);
            matches!(event, Event::Token { .. })
        })
    }

    /// Compares answers with those given alone.
    fn compare(&self, requests: &[usize], answers: &[Answer], when: &str) -> Outcome {
        let mut compared = 0;
        for (&request, answer) in requests.iter().zip(answers) {
            let alone = &self.alone[request];
            if alone.rows.is_empty() || alone.rows.len() != answer.rows.len() {
                let (rows, want) = (answer.rows.len(), alone.rows.len());
                return Err(format!("request {request} {when}: {rows} rows of logits, {want} alone"));
            }
            for (position, row) in &alone.rows {
                if answer.rows.get(position) != Some(row) {
                    return Err(format!("request {request} {when}: other logits at position {position}"));
                }
            }
            if answer.tokens != alone.tokens {
                return Err(format!("request {request} {when}: other tokens"));
            }
            compared += alone.rows.len();
        }
        Ok(compared)
    }

    /// One request after the other, each answer compared.
    fn one_by_one(&self, engine: &mut Engine, requests: &[usize], when: &str) -> Result<Outcome, CheckError> {
        let mut compared = 0;
        for request in requests {
            let answers = self.ask(engine, &[*request])?;
            match self.compare(&[*request], &answers, when) {
                Ok(rows) => compared += rows,
                difference => return Ok(difference),
            }
        }
        Ok(Ok(compared))
    }

    fn threads(&self) -> Result<Outcome, CheckError> {
        total(self.options.threads.iter().map(|&threads| {
            let mut engine = self.engine((self.make)(threads), &self.base())?;
            let mut requests = vec![LONGEST];
            requests.extend(SCORED);
            self.one_by_one(&mut engine, &requests, &format!("on {threads} threads"))
        }))
    }

    fn chunks(&self) -> Result<Outcome, CheckError> {
        let whole = self.options.prompt;
        let sizes = if self.model.info().recurrent() { vec![64, 128, whole] } else { vec![1, 7, 64, whole] };
        total(sizes.into_iter().map(|chunk| {
            let mut engine = self.engine((self.make)(1), &EngineOptions { chunk, ..self.base() })?;
            let mut requests = vec![LONGEST];
            requests.extend(SCORED);
            self.one_by_one(&mut engine, &requests, &format!("in chunks of {chunk}"))
        }))
    }

    fn neighbours(&self) -> Result<Outcome, CheckError> {
        total([1, 2].map(|threads| {
            let mut engine = self.engine((self.make)(threads), &self.base())?;
            let all: Vec<usize> = (0..SEQUENCES).collect();
            let answers = self.ask(&mut engine, &all)?;
            Ok(self.compare(&all, &answers, &format!("beside seven others on {threads} threads")))
        }))
    }

    fn places(&self) -> Result<Outcome, CheckError> {
        let rotated = |by: usize| -> Vec<usize> { (0..SEQUENCES).map(|i| (i + by) % SEQUENCES).collect() };
        let orders = [rotated(1), rotated(4), (0..SEQUENCES).rev().collect()];
        let together = total(orders.into_iter().map(|order| {
            let mut engine = self.engine((self.make)(1), &self.base())?;
            let answers = self.ask(&mut engine, &order)?;
            Ok(self.compare(&order, &answers, &format!("in the order {order:?}")))
        }));
        let joining = || {
            let mut engine = self.engine((self.make)(1), &self.base())?;
            let (mut order, mut answers) = (vec![1, 2, 3], Answers::default());
            let mut ids = self.submit_all(&mut engine, &order)?;
            self.first_token(&mut engine, &mut answers)?;
            let joined = [LONGEST, SCORED[0]];
            ids.extend(self.submit_all(&mut engine, &joined)?);
            order.extend(joined);
            self.finish(&mut engine, &mut answers, ids.len())?;
            Ok(self.compare(&order, &answers.take(&ids), "joining others that generate"))
        };
        total([together, joining()])
    }

    fn reuse(&self) -> Result<Outcome, CheckError> {
        let mut engine = self.engine((self.make)(1), &self.base())?;
        // One sequence is given up, and others that end at different times leave the blocks in another order.
        let mut answers = Answers::default();
        let given_up = self.submit(&mut engine, LONGEST)?;
        let before = [5, 2, 1, 4, 3];
        let ids = self.submit_all(&mut engine, &before)?;
        self.first_token(&mut engine, &mut answers)?;
        engine.cancel(given_up);
        self.finish(&mut engine, &mut answers, ids.len())?;
        let others = self.compare(&before, &answers.take(&ids), "beside one that was given up");
        let mut requests = vec![LONGEST];
        requests.extend(SCORED);
        let after = self.one_by_one(&mut engine, &requests, "after other sequences");
        total([Ok(others), after])
    }

    /// With and without, whichever the device would choose, and with logits left on the device.
    fn ahead(&self) -> Result<Outcome, CheckError> {
        let all: Vec<usize> = (0..SEQUENCES).collect();
        // Beside a request whose tokens the host draws, no step goes ahead.
        let on_device: Vec<usize> = all.iter().copied().filter(|r| *r != NEEDS_HOST).collect();
        let together = |requests: &[usize], run_ahead| {
            let options = EngineOptions { run_ahead: Some(run_ahead), ..self.base() };
            let answers = self.ask(&mut self.engine((self.make)(1), &options)?, requests)?;
            let when = if run_ahead { "one step ahead" } else { "one step at a time" };
            Ok(self.compare(requests, &answers, when))
        };
        let unseen = || {
            let options = EngineOptions { run_ahead: Some(true), logits: false, ..self.base() };
            let requests: Vec<usize> = on_device.iter().copied().filter(|r| !SCORED.contains(r)).collect();
            let answers = self.ask(&mut self.engine((self.make)(1), &options)?, &requests)?;
            let other = |(r, a): &(&usize, &Answer)| a.tokens != self.alone[**r].tokens;
            Ok(match requests.iter().zip(&answers).find(other) {
                Some((request, _)) => Err(format!("request {request} with logits unread: other tokens")),
                None => Ok(0),
            })
        };
        total([together(&all, false), together(&all, true), together(&on_device, true), unseen()])
    }

    fn preemption(&self) -> Result<Outcome, CheckError> {
        let backend = Arc::new(FaultyBackend::new((self.make)(1), Fault::None));
        let size = self.engine(backend.clone(), &self.base())?.cache_size();
        // Room for the longest sequence and little more, so that the others come and go.
        let blocks = (self.options.prompt + self.options.tokens).div_ceil(KV_BLOCK) + 2;
        let cache_bytes =
            size.bytes_per_token * (blocks * KV_BLOCK) as u64 + size.bytes_per_slot * size.slots as u64;
        let options = EngineOptions { cache_bytes: Some(cache_bytes), ..self.base() };
        let mut engine = self.engine(backend.clone(), &options)?;
        let all: Vec<usize> = (0..SEQUENCES).collect();
        let answers = self.ask(&mut engine, &all)?;
        if backend.starts() <= SEQUENCES {
            return Ok(Err("no sequence was preempted: the property was not tried".to_owned()));
        }
        Ok(self.compare(&all, &answers, "preempted"))
    }
}

/// The rows of all outcomes, or the first difference.
fn total(outcomes: impl IntoIterator<Item = Result<Outcome, CheckError>>) -> Result<Outcome, CheckError> {
    let mut compared = 0;
    for outcome in outcomes {
        match outcome? {
            Ok(rows) => compared += rows,
            difference => return Ok(difference),
        }
    }
    Ok(Ok(compared))
}

/// A digest of the bits of a row.
fn digest(row: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    row.iter().for_each(|v| hasher.write_u32(v.to_bits()));
    hasher.finish()
}
