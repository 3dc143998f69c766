//! The poll-driven core.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use graph::backend::{Backend, DeviceError, Precision, StepProfile};
use graph::{Fence, PlanReport};
use models::{Model, ModelInfo, RECURRENT_CHUNK};

use crate::cache::{Cache, CacheSize};
use crate::error::EngineError;
use crate::fingerprint::fingerprint;
use crate::options::EngineOptions;
use crate::plans::{Plans, Progress, Recipe};
use crate::request::{Event, Finish, Request, RequestId, Task};
use crate::sampling::Sampler;
use crate::scheduler::{Budget, Scheduler};
use crate::sequence::{Sequence, Work};
use crate::step::{Segment, StepArrays, positions_of};

/// Runs requests on one model and one device.
///
/// The engine has no thread and never waits: [`Engine::poll`] starts steps and returns what happened. Requests share
/// steps, and what one gets does not depend on the others.
pub struct Engine {
    model: Arc<Model>,
    backend: Arc<dyn Backend>,
    precision: Precision,
    size: CacheSize,
    chunk: usize,
    taps: bool,
    logits: bool,
    profile: bool,
    plans: Plans,
    cache: Cache,
    scheduler: Scheduler,
    arrays: StepArrays,
    flight: Option<Flight>,
    ready: Vec<Event>,
    next_id: u64,
    /// Index of a report and the times of a step of its plan.
    profiles: Vec<(usize, StepProfile)>,
    /// One row of logits, for the sampler to work in.
    row: Vec<f32>,
}

struct Flight {
    fence: Fence,
    instance: usize,
    segments: Vec<Segment>,
}

impl Engine {
    /// Loads the weights and compiles the plans. `progress` is called with bytes packed and in all.
    ///
    /// # Errors
    /// Options out of range, a model or device that cannot be used, a context that does not fit.
    pub fn new(
        model: Arc<Model>,
        backend: Arc<dyn Backend>,
        options: &EngineOptions,
        progress: Progress,
    ) -> Result<Engine, EngineError> {
        options.validate()?;
        let info = model.info();
        let (precision, kv) = (options.precision_for(info), options.kv_dtype(info));
        let weights = model.checkpoint().file_bytes();
        let size = CacheSize::choose(info, options, backend.memory_limit(), weights)?;
        let recurrent = info.recurrent;
        let chunk = if recurrent { options.chunk.max(RECURRENT_CHUNK) } else { options.chunk };
        let recipe = Recipe { precision, kv, size, chunk, taps: options.taps, profile: options.profile };
        let plans = Plans::build(&model, &*backend, &recipe, progress)?;
        Ok(Engine {
            cache: Cache::new(&size)?,
            scheduler: Scheduler::new(options.max_sequences),
            arrays: StepArrays::default(),
            flight: None,
            ready: vec![],
            next_id: 0,
            row: vec![],
            taps: options.taps,
            logits: options.logits,
            profile: options.profile,
            profiles: vec![],
            model,
            backend,
            precision,
            size,
            chunk: options.chunk,
            plans,
        })
    }

    /// The model's description.
    pub fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    /// The device.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Kernel class in use.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Sizes of context and cache.
    pub fn cache_size(&self) -> CacheSize {
        self.size
    }

    /// Reports of the plans, smallest bucket first.
    pub fn reports(&self) -> &[PlanReport] {
        self.plans.reports()
    }

    /// The times of every step since the last call, each with the index of its plan among [`Engine::reports`]. Empty
    /// without [`EngineOptions::profile`], or when the device cannot tell.
    pub fn take_profiles(&mut self) -> Vec<(usize, StepProfile)> {
        std::mem::take(&mut self.profiles)
    }

    /// A digest, in sixteen hexadecimal digits, of what decides the bits of a request's logits: the version of this program,
    /// the device and its kernels, the plans (ops, shapes, types, precision, KV type), the context, the number of
    /// sequences at once, and the weights.
    ///
    /// Weights, rotary tables among them, are covered by name, type and shape, and by their values at three places:
    /// whole rows of at least 4 KiB at the beginning, in the middle and at the end of each, and all of what is smaller.
    /// So another model, another quantisation or a fine-tune of the same model has another fingerprint; a change of a
    /// large matrix in other places only is not seen. Tokenizer and chat template are not covered: they decide which
    /// tokens are asked for, not what is answered to them.
    pub fn fingerprint(&self) -> String {
        let setting = format!("{:?} {} {}", self.precision, self.size.context, self.size.slots);
        let fixed = [env!("CARGO_PKG_VERSION").to_owned(), self.backend.description(), setting];
        let plans = self.plans.reports().iter().map(|report| report.identity.to_string());
        fingerprint(fixed.into_iter().chain(plans), &self.plans.digest)
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A prompt that is empty, too long for the context (or as long, with output to follow) or not of this vocabulary;
    /// bad sampling options.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let Request { prompt, task } = request;
        let vocab = self.info().vocab;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.len() > self.size.context {
            return Err(EngineError::PromptTooLong { prompt: prompt.len(), context: self.size.context });
        }
        let generates = matches!(task, Task::Generate { max_tokens, .. } if max_tokens != Some(0));
        if generates && prompt.len() == self.size.context {
            return Err(EngineError::NoRoomForOutput { context: self.size.context });
        }
        if let Some(index) = prompt.iter().position(|id| *id as usize >= vocab) {
            return Err(EngineError::TokenId { index, id: prompt[index], vocab });
        }
        let work = match task {
            Task::Generate { max_tokens, sampling, entropy, stop } => {
                let mut sampler = Box::new(Sampler::new(sampling, vocab, entropy)?);
                sampler.accept_prompt(&prompt)?;
                let stop_at = max_tokens.map_or(usize::MAX, |n| prompt.len().saturating_add(n));
                Work::Generate { sampler, stop_at, stop }
            }
            Task::Score { from } => Work::Score { next: from },
        };
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let nothing = match &work {
            Work::Generate { stop_at, .. } => *stop_at == prompt.len(),
            Work::Score { next } => *next >= prompt.len(),
        };
        if nothing {
            let reason = if matches!(work, Work::Score { .. }) { Finish::Stop } else { Finish::MaxTokens };
            self.ready.push(Event::Finished { id, reason });
            return Ok(id);
        }
        let prompt_len = prompt.len();
        self.scheduler.waiting.push_back(Sequence {
            id,
            tokens: prompt,
            prompt: prompt_len,
            done: 0,
            holding: Default::default(),
            work,
            cancelled: false,
        });
        Ok(id)
    }

    /// Forgets a request; its blocks are free before the next step. No more events come for it.
    pub fn cancel(&mut self, id: RequestId) {
        self.ready.retain(|event| event.request() != id);
        self.scheduler.waiting.retain(|s| s.id != id);
        for s in self.scheduler.running.iter_mut().filter(|s| s.id == id) {
            s.cancelled = true;
        }
    }

    /// Advances the work. Ready with events when something happened, ready with `None` when nothing is left to do,
    /// pending while the device computes.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<Event>>> {
        loop {
            if let Some(flight) = &mut self.flight {
                let Poll::Ready(result) = Pin::new(&mut flight.fence).poll(cx) else { return Poll::Pending };
                if let Some(flight) = self.flight.take() {
                    self.complete(flight, result);
                }
            }
            if !self.ready.is_empty() {
                return Poll::Ready(Some(std::mem::take(&mut self.ready)));
            }
            if !self.start() && self.ready.is_empty() {
                return Poll::Ready(None);
            }
        }
    }

    /// Starts the next step; false when there is none.
    fn start(&mut self) -> bool {
        self.drop_cancelled();
        self.scheduler.admit(&mut self.cache);
        let budget = Budget {
            rows: self.plans.limits.rows,
            chunk: self.chunk,
            outs: self.plans.limits.outs,
            recurrent: self.info().recurrent,
        };
        let segments = self.scheduler.plan(&mut self.cache, budget);
        if segments.is_empty() {
            return false;
        }
        self.arrays.fill(&segments, &self.scheduler.running, self.plans.limits.pages);
        match self.launch() {
            Ok((fence, instance)) => self.flight = Some(Flight { fence, instance, segments }),
            Err(error) => self.fail(&segments, &error),
        }
        true
    }

    fn launch(&mut self) -> Result<(Fence, usize), EngineError> {
        let (index, instance, declared) = self.plans.for_rows(self.arrays.rows())?;
        let encoded = self.arrays.with_inputs(declared, |inputs| instance.encode(inputs))?;
        Ok((instance.submit(encoded), index))
    }

    fn complete(&mut self, flight: Flight, result: Result<(), DeviceError>) {
        if self.profile && result.is_ok() {
            let profile = self.plans.instance(flight.instance).profile();
            self.profiles.extend(profile.map(|profile| (flight.instance, profile)));
        }
        let refused = match result {
            Ok(()) => Ok(vec![None; flight.segments.len()]),
            Err(error) => refused_by(&flight.segments, error),
        };
        let outcome = refused.and_then(|refused| self.collect(&flight, refused));
        if let Err(error) = outcome {
            self.fail(&flight.segments, &error);
        }
        self.drop_cancelled();
    }

    /// Reads a finished step: advances its sequences, samples, reports. `refused` says for each segment what the device
    /// refused of it; the others have their results.
    fn collect(&mut self, flight: &Flight, refused: Vec<Option<EngineError>>) -> Result<(), EngineError> {
        let vocab = self.info().vocab;
        let layers = self.info().layers;
        let instance = self.plans.instance(flight.instance);
        // What cannot be read fails the step before anything is reported of it.
        let logits = instance.output("logits")?;
        let mut hidden = vec![];
        if self.taps {
            let names = (0..=layers).map(|i| format!("hidden.{i}")).chain(["hidden.final".to_owned()]);
            for name in names {
                hidden.push((instance.output(&name)?, name));
            }
        }
        let step_rows = flight.segments.iter().map(|s| s.len).sum::<usize>();
        let mut finished = vec![];
        let (mut next_row, mut next_out) = (0, 0);
        for (segment, refused) in flight.segments.iter().zip(refused) {
            let (first_row, first_out) = (next_row, next_out);
            (next_row, next_out) = (first_row + segment.len, first_out + segment.outs);
            let s = &mut self.scheduler.running[segment.sequence];
            if let Some(error) = refused {
                if !s.cancelled {
                    self.ready.push(Event::Failed { id: s.id, error });
                }
                finished.push(segment.sequence);
                continue;
            }
            s.done = segment.start + segment.len;
            let rows = &logits[first_out * vocab..next_out * vocab];
            for (all, name) in hidden.iter().filter(|_| !s.cancelled) {
                let width = all.len() / step_rows;
                let (name, rows) = (name.clone(), all[first_row * width..next_row * width].to_vec());
                self.ready.push(Event::Hidden { id: s.id, name, first: segment.start, rows });
            }
            if segment.outs == 0 || s.cancelled {
                continue;
            }
            let position = s.tokens.len() as u64;
            let end = match &mut s.work {
                Work::Score { next } => {
                    self.ready.push(Event::Scores { id: s.id, first: *next, logits: rows.to_vec() });
                    *next = s.done;
                    (s.done == s.tokens.len()).then_some(Ok(Finish::Stop))
                }
                Work::Generate { sampler, .. } => {
                    if self.logits {
                        let first = s.tokens.len() - 1;
                        self.ready.push(Event::Scores { id: s.id, first, logits: rows.to_vec() });
                    }
                    self.row.clear();
                    self.row.extend_from_slice(rows);
                    let drawn = sampler
                        .sample(&mut self.row, position, None)
                        .and_then(|token| sampler.accept(token.id).map(|()| token));
                    match drawn {
                        Ok(token) => {
                            let end = s.push(token.id, self.size.context);
                            self.ready.push(Event::Token { id: s.id, token });
                            end.map(Ok)
                        }
                        Err(error) => Some(Err(EngineError::from(error))),
                    }
                }
            };
            if let Some(end) = end {
                finished.push(segment.sequence);
                self.ready.push(match end {
                    Ok(reason) => Event::Finished { id: s.id, reason },
                    Err(error) => Event::Failed { id: s.id, error },
                });
            }
        }
        finished.sort_unstable();
        for index in finished.into_iter().rev() {
            self.retire(index);
        }
        Ok(())
    }

    fn retire(&mut self, index: usize) {
        let mut s = self.scheduler.running.remove(index);
        self.cache.free(&mut s.holding);
    }

    fn drop_cancelled(&mut self) {
        for index in (0..self.scheduler.running.len()).rev() {
            if self.scheduler.running[index].cancelled {
                self.retire(index);
            }
        }
    }

    /// A step that failed as a whole fails the requests in it.
    fn fail(&mut self, segments: &[Segment], error: &EngineError) {
        let mut indices: Vec<usize> = segments.iter().map(|s| s.sequence).collect();
        indices.sort_unstable();
        for index in indices.into_iter().rev() {
            let s = &self.scheduler.running[index];
            if !s.cancelled {
                self.ready.push(Event::Failed { id: s.id, error: error.clone() });
            }
            self.retire(index);
        }
    }
}

/// What a failed step comes to for each of its segments; the error where it is not known whose fault it was.
fn refused_by(segments: &[Segment], error: DeviceError) -> Result<Vec<Option<EngineError>>, EngineError> {
    let DeviceError::Numeric { op, problem, rows } = &error else { return Err(error.into()) };
    let Some(positions) = positions_of(segments, rows) else { return Err(error.into()) };
    let told = |position| EngineError::Numeric { position, op: op.clone(), problem: problem.clone() };
    Ok(positions.into_iter().map(|position| position.map(told)).collect())
}
