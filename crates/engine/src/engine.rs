//! The poll-driven core.

mod collect;
mod recover;
mod sessions;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use graph::PlanReport;
use graph::backend::{Backend, KvType, Precision, StepProfile};
use graph::rewrite::ahead::TOKENS;
use models::{LOGITS, Model, ModelInfo, RECURRENT_CHUNK};

use self::recover::Recovery;
pub use self::sessions::Saving;
use crate::cache::{Cache, CacheSize};
use crate::error::EngineError;
use crate::fingerprint::fingerprint;
use crate::options::EngineOptions;
use crate::plans::{Plans, Progress, Recipe, Run};
use crate::request::{Event, Finish, Request, RequestId, Task};
use crate::sampling::Sampler;
use crate::scheduler::{Budget, Scheduler};
use crate::sequence::{Sequence, Work};
use crate::session::{SessionError, Sessions};
use crate::step::{Segment, StepArrays};

/// Runs requests on one model and one device, or several that share its layers.
///
/// The engine has no thread and never waits: [`Engine::poll`] starts steps and returns what happened. Requests share
/// steps, and what one gets does not depend on the others.
///
/// Where the device draws tokens ([`crate::EngineOptions::run_ahead`]) it is kept one step ahead: while a step runs the
/// next one is submitted, whose rows take the tokens from the device. A request that a token ends has then one row too
/// many in flight, which nobody looks at.
///
/// A device that is lost fails the requests of the steps in flight. All others wait until it is open again, which is tried
/// when there is something to run, and are computed from their beginning, with the same answers.
pub struct Engine {
    model: Arc<Model>,
    /// At least one.
    devices: Vec<Arc<dyn Backend>>,
    recipe: Recipe,
    /// As asked for: recurrent models round up.
    chunk: usize,
    logits: bool,
    plans: Plans,
    cache: Cache,
    scheduler: Scheduler,
    sessions: Sessions,
    /// The device was lost and is being opened anew.
    lost: Option<Recovery>,
    /// Steps in flight, in the order of submission, in which they end.
    flights: VecDeque<Flight>,
    /// Arrays of steps that have ended.
    spare: Vec<StepArrays>,
    ready: Vec<Event>,
    next_id: u64,
    /// Index of a report and the times of a step of its plan.
    profiles: Vec<(usize, StepProfile)>,
    /// One row of logits, for the sampler to work in.
    row: Vec<f32>,
}

struct Flight {
    run: Run,
    segments: Vec<Segment>,
}

/// Which outputs a step is read for.
struct Wanted {
    logits: bool,
    tokens: bool,
}

impl Engine {
    /// Loads the weights and compiles the plans. The layers are divided over the devices in their order, for models too
    /// large for one: a step goes through them one after another, and devices that are alike give, bit for bit, the answers
    /// of one alone. `progress` is called with bytes packed and in all.
    ///
    /// # Errors
    /// Options out of range, a model or device that cannot be used, a context that does not fit; a device without kernels
    /// for the [`EngineOptions::kv_type`]; no devices, or [`EngineOptions::layers`] that do not go with them and the model;
    /// [`EngineOptions::run_ahead`], which needs the whole model on one device, with several.
    pub fn new(
        model: Arc<Model>,
        devices: Vec<Arc<dyn Backend>>,
        options: &EngineOptions,
        progress: Progress,
    ) -> Result<Engine, EngineError> {
        options.validate()?;
        let info = model.info();
        let (precision, kv_type) = (options.precision_for(info), options.kv_type_for(info));
        let weights = model.checkpoint().file_bytes();
        let stages = options.stages(devices.len(), info.layers)?;
        let size = CacheSize::choose(info, options, &devices, weights)?;
        let chunk = if info.recurrent() { options.chunk.max(RECURRENT_CHUNK) } else { options.chunk };
        let alone = devices.len() == 1;
        if options.run_ahead == Some(true) && !alone {
            let problem =
                "needs the whole model on one device: tokens are drawn where the layers end".to_owned();
            return Err(EngineError::Option { option: "run_ahead", problem });
        }
        let ahead = alone && options.run_ahead.unwrap_or_else(|| devices[0].runs_ahead());
        let EngineOptions { taps, profile, .. } = *options;
        let recipe = Recipe { precision, kv_type, size, chunk, taps, ahead, profile, stages };
        let plans = Plans::build(&model, &devices, &recipe, progress)?;
        Ok(Engine {
            cache: Cache::new(&size)?,
            scheduler: Scheduler::new(options.max_sequences),
            sessions: Sessions::default(),
            lost: None,
            flights: VecDeque::new(),
            spare: vec![],
            ready: vec![],
            next_id: 0,
            profiles: vec![],
            row: vec![],
            logits: options.logits,
            model,
            devices,
            recipe,
            chunk: options.chunk,
            plans,
        })
    }

    /// The model's description.
    pub fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    /// The devices, in the order in which they share the layers.
    pub fn devices(&self) -> &[Arc<dyn Backend>] {
        &self.devices
    }

    /// The devices and their kernels, for people.
    pub fn device(&self) -> String {
        self.devices.iter().map(|d| d.description()).collect::<Vec<_>>().join(" + ")
    }

    /// Kernel class in use.
    pub fn precision(&self) -> Precision {
        self.recipe.precision
    }

    /// How keys and values are kept.
    pub fn kv_type(&self) -> KvType {
        self.recipe.kv_type
    }

    /// Sizes of context and cache.
    pub fn cache_size(&self) -> CacheSize {
        self.recipe.size
    }

    /// Reports of the plans, smallest bucket first, and for each bucket the devices in order.
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
        let setting =
            format!("{:?} {} {}", self.recipe.precision, self.recipe.size.context, self.recipe.size.slots);
        let devices = self.devices.iter().map(|device| device.description());
        let plans = self.plans.reports().iter().map(|report| report.identity.to_string());
        let fixed = [env!("CARGO_PKG_VERSION").to_owned(), setting];
        fingerprint(fixed.into_iter().chain(devices).chain(plans), &self.plans.digest)
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A prompt that is empty, too long for the context (or as long, with output to follow) or not of this vocabulary;
    /// bad sampling options; a session that there is not, or that has a request.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let Request { prompt, task, session } = request;
        let vocab = self.info().vocab;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.len() > self.recipe.size.context {
            return Err(EngineError::PromptTooLong {
                prompt: prompt.len(),
                context: self.recipe.size.context,
            });
        }
        let generates = matches!(task, Task::Generate { max_tokens, .. } if max_tokens != Some(0));
        if generates && prompt.len() == self.recipe.size.context {
            return Err(EngineError::NoRoomForOutput { context: self.recipe.size.context });
        }
        if let Some(index) = prompt.iter().position(|id| *id as usize >= vocab) {
            return Err(EngineError::TokenId { index, id: prompt[index], vocab });
        }
        if let Some(session) = session
            && self.sessions.get(session)?.request.is_some()
        {
            return Err(SessionError::Busy.into());
        }
        let work = match task {
            Task::Generate { max_tokens, sampling, entropy, stop } => {
                let mut sampler = Box::new(Sampler::new(sampling, vocab, entropy)?);
                sampler.accept_prompt(&prompt)?;
                let stop_at = max_tokens.map_or(usize::MAX, |n| prompt.len().saturating_add(n));
                let on_device = self.recipe.ahead && sampler.fits_device();
                Work::Generate { sampler, stop_at, stop, on_device }
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
        if let Some(session) = session {
            self.sessions.claim(session, id);
        }
        let prompt_len = prompt.len();
        self.scheduler.waiting.push_back(Sequence {
            id,
            tokens: prompt,
            unread: 0,
            prompt: prompt_len,
            sent: 0,
            life: 0,
            room: self.recipe.size.context,
            holding: Default::default(),
            work,
            session,
            recurrent: self.info().recurrent(),
            in_snapshot: false,
            snapshot: None,
        });
        Ok(id)
    }

    /// Forgets a request; its blocks are free before the next step, or its session's. No more events come for it.
    pub fn cancel(&mut self, id: RequestId) {
        self.ready.retain(|event| event.request() != id);
        if let Some(index) = self.scheduler.waiting.iter().position(|s| s.id == id) {
            let waiting = self.scheduler.waiting.remove(index);
            self.sessions.release(waiting.and_then(|s| s.session));
        }
        if let Some(index) = self.scheduler.running.iter().position(|s| s.id == id) {
            self.retire(index, true);
        }
    }

    /// Advances the work. Ready with events when something happened, ready with `None` when nothing is left to do,
    /// pending while the device computes.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<Event>>> {
        loop {
            // What happened is told first, so that the next step can follow it.
            if !self.ready.is_empty() {
                return Poll::Ready(Some(std::mem::take(&mut self.ready)));
            }
            if self.lost.is_some() && self.flights.is_empty() && self.recover(cx).is_pending() {
                return Poll::Pending;
            }
            let written = self.poll_writes(cx);
            while self.ready.is_empty() && self.may_start() && self.start() {}
            let Some(flight) = self.flights.front_mut() else {
                if !self.ready.is_empty() {
                    continue;
                }
                if written.is_pending() && !self.scheduler.waiting.is_empty() {
                    return Poll::Pending;
                }
                if self.lost.is_some() && !self.scheduler.waiting.is_empty() {
                    continue;
                }
                return Poll::Ready(None);
            };
            let Poll::Ready(result) = self.plans.poll(&mut flight.run, cx) else {
                if self.ready.is_empty() {
                    return Poll::Pending;
                }
                continue;
            };
            if let Some(flight) = self.flights.pop_front() {
                self.complete(flight, result);
            }
        }
    }

    /// Whether another step may be submitted now. Not beside one that gives the host logits to draw from: the sequence
    /// would miss that step, and so every other one.
    fn may_start(&self) -> bool {
        if self.lost.is_some() {
            return false;
        }
        self.flights.is_empty()
            || self.flights.len() < self.recipe.depth()
                && !self.scheduler.running.iter().any(|s| s.awaits_host())
    }

    /// Starts the next step; false when there is none.
    fn start(&mut self) -> bool {
        // Asked for those who wait alone.
        let in_flight = if self.scheduler.waiting.is_empty() { vec![] } else { self.in_flight() };
        let resumed = self.scheduler.admit(&mut self.cache, &mut self.sessions, &in_flight);
        self.ready.extend(resumed.into_iter().map(|(id, reused)| Event::Resumed { id, reused }));
        let budget = Budget {
            rows: self.plans.limits.rows,
            chunk: self.chunk,
            outs: self.plans.limits.outs,
            recurrent: self.info().recurrent(),
        };
        let segments = self.scheduler.plan(&mut self.cache, &mut self.sessions, budget);
        if segments.is_empty() {
            return false;
        }
        let mut arrays = self.spare.pop().unwrap_or_default();
        arrays.fill(&segments, &self.scheduler.running, self.plans.limits.pages);
        let outputs = self.outputs(&segments);
        match self.plans.start(arrays, outputs) {
            Ok(run) => {
                segments.iter().for_each(|s| self.scheduler.running[s.sequence].send(s));
                self.flights.push_back(Flight { run, segments });
            }
            Err(error) => self.fail(&segments, &error),
        }
        true
    }

    /// Which outputs of a step somebody looks at. Rows of logits are large, and may lie far from the host.
    fn wanted(&self, segments: &[Segment]) -> Wanted {
        let draws = segments.iter().any(|s| s.draws);
        let by_host = segments.iter().any(|s| s.outs > 0 && !s.draws);
        Wanted { logits: by_host || self.logits && draws, tokens: draws }
    }

    fn outputs(&self, segments: &[Segment]) -> Vec<Cow<'static, str>> {
        let wanted = self.wanted(segments);
        let taps = if self.recipe.taps { hidden_names(self.info().layers) } else { vec![] };
        let drawn_from = [(wanted.logits, LOGITS), (wanted.tokens, TOKENS)];
        let drawn_from = drawn_from.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name.into());
        taps.into_iter().map(Cow::Owned).chain(drawn_from).collect()
    }
}

/// The outputs that taps add, in the order of the computation.
fn hidden_names(layers: usize) -> Vec<String> {
    (0..=layers).map(models::hidden).chain([models::HIDDEN_FINAL.to_owned()]).collect()
}
