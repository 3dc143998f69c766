//! An engine on a tiny model, and what came of each request.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use checks::faults::{Fault, FaultyBackend};
use checks::open_model;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::Backend;
use gristmill_engine::sampling::SamplingOptions;
use gristmill_engine::{Engine, EngineError, EngineOptions, Event, Finish, Request, RequestId, Task};
use models::Model;

/// One thread for all tests of this binary.
static CPU: LazyLock<Arc<CpuBackend>> =
    LazyLock::new(|| Arc::new(CpuBackend::new(CpuOptions { threads: 1, isa: None }).unwrap()));

/// What came of a request.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    /// Bits of the logits by position.
    pub(crate) logits: BTreeMap<usize, Vec<u32>>,
    pub(crate) end: Option<Result<Finish, EngineError>>,
}

/// An engine, the device under it, and the answers so far.
pub(crate) struct Desk {
    pub(crate) engine: Engine,
    pub(crate) device: Arc<FaultyBackend>,
    pub(crate) answers: BTreeMap<RequestId, Answer>,
    /// Requests that are to be answered: submitted and not cancelled.
    pub(crate) open: Vec<RequestId>,
    /// Requests in the order of their first token or row.
    pub(crate) begun: Vec<RequestId>,
    /// Requests in the order they ended.
    pub(crate) ended: Vec<RequestId>,
}

/// The golden model of a family.
pub(crate) fn model(case: &str) -> Arc<Model> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    open_model(&tests.join(format!("goldens-gguf/{case}.gguf"))).unwrap()
}

/// A prompt of so many tokens, another for each `salt`.
pub(crate) fn prompt(len: usize, salt: u32) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + (i * 31 + salt * 101 + i * i * (salt % 7)) % 290).collect()
}

/// Greedy continuation by at most `max_tokens`.
pub(crate) fn generate(prompt: Vec<u32>, max_tokens: usize) -> Request {
    sample(prompt, max_tokens, SamplingOptions::default())
}

/// Continuation by at most `max_tokens`, drawn in this way.
pub(crate) fn sample(prompt: Vec<u32>, max_tokens: usize, sampling: SamplingOptions) -> Request {
    let task = Task::Generate { max_tokens: Some(max_tokens), sampling, entropy: 0, stop: vec![] };
    Request { prompt, task }
}

pub(crate) fn score(prompt: Vec<u32>, from: usize) -> Request {
    Request { prompt, task: Task::Score { from } }
}

impl Desk {
    pub(crate) fn new(options: EngineOptions) -> Desk {
        Desk::on("llama", Fault::None, options)
    }

    pub(crate) fn on(case: &str, fault: Fault, options: EngineOptions) -> Desk {
        Desk::without_logits(case, fault, EngineOptions { logits: true, ..options })
    }

    /// Logits are reported only if the options say so.
    pub(crate) fn without_logits(case: &str, fault: Fault, options: EngineOptions) -> Desk {
        Desk::split(case, fault, vec![], options)
    }

    /// The first of several devices is watched.
    pub(crate) fn split(
        case: &str,
        fault: Fault,
        others: Vec<Arc<dyn Backend>>,
        options: EngineOptions,
    ) -> Desk {
        let device = Arc::new(FaultyBackend::new(CPU.clone(), fault));
        let mut devices: Vec<Arc<dyn Backend>> = vec![device.clone()];
        devices.extend(others);
        let engine = Engine::new(model(case), devices, &options, &mut |_, _| {});
        let engine = engine.unwrap_or_else(|e| panic!("{e}"));
        Desk { engine, device, answers: BTreeMap::new(), open: vec![], begun: vec![], ended: vec![] }
    }

    pub(crate) fn submit(&mut self, request: Request) -> RequestId {
        let id = self.engine.submit(request).unwrap_or_else(|e| panic!("{e}"));
        self.open.push(id);
        id
    }

    pub(crate) fn cancel(&mut self, id: RequestId) {
        self.engine.cancel(id);
        self.open.retain(|open| *open != id);
    }

    /// Waits until something happened; false when nothing is left to do.
    pub(crate) fn advance(&mut self) -> bool {
        let engine = &mut self.engine;
        let Some(events) = pollster::block_on(poll_fn(|cx| engine.poll(cx))) else { return false };
        self.note(events);
        true
    }

    /// Does what can be done without waiting for the device.
    pub(crate) fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(events)) = self.engine.poll(&mut cx) {
            self.note(events);
        }
    }

    fn note(&mut self, events: Vec<Event>) {
        for event in events {
            let id = event.request();
            assert!(!self.ended.contains(&id), "an event after the end: {event:?}");
            if !self.begun.contains(&id) {
                self.begun.push(id);
            }
            let answer = self.answers.entry(id).or_default();
            match event {
                Event::Token { token, .. } => answer.tokens.push(token.id),
                Event::Scores { first, logits, .. } => {
                    let vocab = self.engine.info().vocab;
                    for (i, row) in logits.chunks_exact(vocab).enumerate() {
                        let bits = row.iter().map(|v| v.to_bits()).collect();
                        assert!(answer.logits.insert(first + i, bits).is_none(), "a row is reported twice");
                    }
                }
                Event::Hidden { .. } => {}
                Event::Finished { reason, .. } => answer.end = Some(Ok(reason)),
                Event::Failed { error, .. } => answer.end = Some(Err(error)),
                other => panic!("an event that is not expected: {other:?}"),
            }
            if answer.end.is_some() {
                self.ended.push(id);
                self.open.retain(|open| *open != id);
            }
        }
    }

    /// Runs until nothing is left to do.
    pub(crate) fn finish(&mut self) {
        while self.advance() {}
        assert!(self.open.is_empty(), "the engine stopped with work left: {:?}", self.open);
    }

    pub(crate) fn answer(&self, id: RequestId) -> &Answer {
        self.answers.get(&id).unwrap_or_else(|| panic!("no answer to {id:?}"))
    }

    /// Cache bytes that hold so many blocks.
    pub(crate) fn bytes_of(&self, blocks: usize) -> u64 {
        let size = self.engine.cache_size();
        size.bytes_per_token * (blocks * 16) as u64 + size.bytes_per_slot * size.slots as u64
    }
}

/// The answer to a request alone in an engine of its own.
pub(crate) fn alone(case: &str, request: Request, options: EngineOptions) -> Answer {
    let mut desk = Desk::on(case, Fault::None, options);
    let id = desk.submit(request);
    desk.finish();
    desk.answer(id).clone()
}

/// Options with a pool of so many blocks.
pub(crate) fn pool_of(blocks: usize, options: EngineOptions) -> EngineOptions {
    let bytes = Desk::new(options.clone()).bytes_of(blocks);
    EngineOptions { cache_bytes: Some(bytes), ..options }
}
