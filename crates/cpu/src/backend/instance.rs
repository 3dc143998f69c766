//! Plans and their instances.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use graph::backend::{
    Bindings, DeviceError, Encoded, Instance, KernelTime, Plan, StepInputs, StepProfile, WeightDesc,
};
use graph::validate::StepLayout;
use graph::{Fence, PlanReport, Signal, fence};
use tensor::DType;

use crate::matmul::prefetch;
use crate::memory::HugeBuf;
use crate::pool::{Job, Worker};

use super::state::{CpuState, StateInfo};
use super::steps::{Ctx, Planned, Refused};
use super::weight::CpuWeight;
use super::work::Work;
use super::{Arena, Shared, memory_error};

/// A compiled graph.
pub(super) struct CpuPlan {
    pub(super) inner: Arc<PlanInner>,
    pub(super) report: PlanReport,
}

pub(super) struct PlanInner {
    pub(super) shared: Arc<Shared>,
    pub(super) graph: graph::Graph,
    pub(super) steps: Vec<Planned>,
    /// Steps are timed.
    pub(super) profile: bool,
    pub(super) layout: StepLayout,
    pub(super) weights: Vec<WeightDesc>,
    pub(super) states: Vec<StateInfo>,
    pub(super) outputs: Vec<OutputInfo>,
    /// The extents of the sequences: first word among the inputs, entries, and the scalar that bounds them.
    pub(super) extents: Option<(usize, usize, Option<usize>)>,
    /// 32-bit words of all outputs.
    pub(super) output_words: usize,
    /// Bytes of intermediates and scratch.
    pub(super) arena_bytes: usize,
}

pub(super) struct OutputInfo {
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) elements: usize,
    /// The scalar that bounds the first axis, and elements per entry.
    pub(super) bound: Option<(usize, usize)>,
}

impl Plan for CpuPlan {
    fn report(&self) -> &PlanReport {
        &self.report
    }

    fn instance(&self, bindings: &Bindings) -> Result<Box<dyn Instance>, DeviceError> {
        let plan = &self.inner;
        graph::validate::bindings(&plan.graph, bindings)?;
        let stranger = |name: &str| DeviceError::Binding {
            port: name.to_owned(),
            problem: "was made by another backend or for another type, shape or width of keys".into(),
        };
        let weights = plan.weights.iter().map(|desc| {
            let bound = bindings.weights[&desc.name].clone().downcast::<CpuWeight>();
            bound.ok().filter(|w| w.fits(desc)).ok_or_else(|| stranger(&desc.name))
        });
        let states = plan.states.iter().map(|info| {
            let bound = bindings.states[&info.name].clone().downcast::<CpuState>();
            bound.ok().filter(|s| s.fits(&plan.shared, info)).ok_or_else(|| stranger(&info.name))
        });
        let (inputs, outputs) = (plan.layout.words() * 4, plan.output_words * 4);
        Ok(Box::new(CpuInstance {
            weights: weights.collect::<Result<Vec<_>, _>>()?.into(),
            states: states.collect::<Result<Vec<_>, _>>()?.into(),
            arena: plan.shared.arena(plan.arena_bytes)?,
            inputs: vec![0; plan.layout.words()],
            io: Arc::new(Io {
                inputs: HugeBuf::zeroed(inputs).map_err(|_| memory_error("step inputs", inputs))?,
                outputs: HugeBuf::zeroed(outputs).map_err(|_| memory_error("step outputs", outputs))?,
            }),
            scalars: vec![],
            ran: vec![],
            wanted: vec![],
            asked: vec![],
            serial: 0,
            encoded: None,
            flight: None,
            host_nanos: 0,
            plan: plan.clone(),
        }))
    }
}

/// Inputs and outputs of an instance. Owned by the job while one is in flight, by the instance otherwise.
pub(super) struct Io {
    inputs: HugeBuf,
    outputs: HugeBuf,
}

struct CpuInstance {
    plan: Arc<PlanInner>,
    weights: Arc<[Arc<CpuWeight>]>,
    states: Arc<[Arc<CpuState>]>,
    arena: Arc<Arena>,
    /// What was encoded last; copied into `io` at submission.
    inputs: Vec<u32>,
    io: Arc<Io>,
    scalars: Vec<u32>,
    /// The scalars of the submission whose outputs can be read.
    ran: Vec<u32>,
    /// Outputs that the encoded step asks for.
    wanted: Vec<String>,
    /// Those of the submission whose outputs can be read.
    asked: Vec<String>,
    serial: u64,
    encoded: Option<u64>,
    flight: Option<Arc<Flight>>,
    /// What encoding and submitting the last step took, where steps are timed.
    host_nanos: u64,
}

/// Whether a submission has left the workers.
#[derive(Default)]
struct Flight {
    outcome: Mutex<Option<Result<(), DeviceError>>>,
    /// Where steps are timed.
    kernels: Mutex<Vec<KernelTime>>,
}

impl CpuInstance {
    /// The sequence of each row of the encoded step.
    fn sequences(&self) -> Vec<u32> {
        let Some((at, most, scalar)) = self.plan.extents else { return vec![] };
        let count = scalar.map_or(most, |s| self.scalars[s] as usize);
        let extents = (0..).zip(&self.inputs[at..at + count]);
        extents.flat_map(|(seq, &rows)| std::iter::repeat_n(seq, rows as usize)).collect()
    }

    fn is_busy(&self) -> bool {
        self.flight.as_ref().is_some_and(|f| lock(&f.outcome).is_none())
    }

    /// The real elements of an output.
    fn read(&self, name: &str, dtype: DType) -> Result<&[u32], DeviceError> {
        graph::validate::readable(&self.plan.layout, &self.asked, name, dtype)?;
        match self.flight.as_ref().and_then(|f| lock(&f.outcome).clone()) {
            Some(Ok(())) => {}
            Some(Err(DeviceError::Numeric { rows, .. })) if !rows.is_empty() => {}
            Some(Err(error)) => return Err(error),
            None => return Err(DeviceError::Busy("no submission of this instance has finished".into())),
        }
        let Some(info) = self.plan.outputs.iter().find(|o| o.name == name) else {
            unreachable!("an output of the layout is one of the plan's")
        };
        let len = info.bound.map_or(info.elements, |(scalar, per)| self.ran[scalar] as usize * per);
        Ok(&self.io.outputs.as_slice::<u32>()[info.offset..info.offset + len])
    }
}

fn nanos_since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance for CpuInstance {
    fn encode(&mut self, step: &StepInputs) -> Result<Encoded, DeviceError> {
        if self.is_busy() {
            return Err(DeviceError::Busy(
                "the instance has a submission in flight: await its fence first".into(),
            ));
        }
        let start = self.plan.profile.then(Instant::now);
        self.encoded = None; // a step that is refused leaves the inputs half written
        self.plan.layout.encode(step, &mut self.inputs, &mut self.scalars)?;
        self.wanted = step.outputs.iter().map(|name| (*name).to_owned()).collect();
        self.serial += 1;
        self.encoded = Some(self.serial);
        self.host_nanos = start.map_or(0, nanos_since);
        Ok(Encoded { serial: self.serial })
    }

    fn submit(&mut self, encoded: Encoded) -> Fence {
        if self.is_busy() || self.encoded.take() != Some(encoded.serial) {
            let problem = "only the latest encoding of an idle instance can be submitted";
            return Fence::failed(DeviceError::Busy(problem.into()));
        }
        let start = self.plan.profile.then(Instant::now);
        let flight = Arc::new(Flight::default());
        // SAFETY: no job is in flight, so nothing else touches the inputs; both buffers have the plan's length.
        unsafe {
            let inputs = self.io.inputs.start().cast::<u32>();
            std::ptr::copy_nonoverlapping(self.inputs.as_ptr(), inputs, self.inputs.len());
        }
        let (signal, fence) = fence();
        let job = StepJob {
            plan: self.plan.clone(),
            weights: self.weights.clone(),
            states: self.states.clone(),
            arena: self.arena.clone(),
            io: self.io.clone(),
            seq: self.sequences(),
            scalars: self.scalars.clone(),
            refused: Mutex::default(),
            finished: AtomicBool::new(false),
            done: Mutex::new(Some(signal)),
            flight: flight.clone(),
        };
        self.flight = Some(flight);
        self.ran.clone_from(&self.scalars);
        self.asked = std::mem::take(&mut self.wanted);
        drop(self.plan.shared.pool.submit(Arc::new(job)));
        self.host_nanos += start.map_or(0, nanos_since);
        fence
    }

    fn output(&self, name: &str) -> Result<&[f32], DeviceError> {
        self.read(name, DType::F32).map(bytemuck::cast_slice)
    }

    fn words(&self, name: &str) -> Result<&[u32], DeviceError> {
        self.read(name, DType::U32)
    }

    fn profile(&self) -> Option<StepProfile> {
        let flight = self.flight.as_ref().filter(|f| self.plan.profile && lock(&f.outcome).is_some())?;
        let kernels = lock(&flight.kernels).clone();
        Some(StepProfile { kernels, floor_nanos: 0, host_nanos: self.host_nanos })
    }
}

/// One submission on the pool.
struct StepJob {
    plan: Arc<PlanInner>,
    weights: Arc<[Arc<CpuWeight>]>,
    states: Arc<[Arc<CpuState>]>,
    arena: Arc<Arena>,
    io: Arc<Io>,
    scalars: Vec<u32>,
    seq: Vec<u32>,
    refused: Mutex<Refused>,
    finished: AtomicBool,
    done: Mutex<Option<Signal>>,
    flight: Arc<Flight>,
}

/// Bytes that fit a small L2 cache beside what else is in use.
const SOON: usize = 256 << 10;

impl Job for StepJob {
    fn run(&self, worker: &Worker<'_>) {
        let ctx = Ctx {
            isa: self.plan.shared.isa,
            arena: self.arena.buffer.start().cast(),
            inputs: self.io.inputs.start().cast(),
            outputs: self.io.outputs.start().cast(),
            scalars: &self.scalars,
            seq: &self.seq,
            weights: &self.weights,
            states: &self.states,
            refused: &self.refused,
        };
        let timed = self.plan.profile && worker.index() == 0;
        let mut kernels = Vec::with_capacity(if timed { self.plan.steps.len() } else { 0 });
        // Whoever waits for others fetches the weights it reads next. Each product takes up its own.
        let mut soon: &[u8] = &[];
        for (at, Planned { selection, step, .. }) in self.plan.steps.iter().enumerate() {
            let next = &self.plan.steps[at + 1..];
            // Before the step: behind it others may already write over what its work depends on.
            let work = timed.then(|| Work::of(step, &ctx));
            let start = timed.then(Instant::now);
            step.run(&ctx, worker);
            if at == 0 || step.multiplies() {
                let weights =
                    next.iter().find_map(|next| next.step.weights(&ctx, worker, step)).unwrap_or(&[]);
                soon = &weights[..weights.len().min(SOON)];
            }
            if self.plan.profile || next.first().is_none_or(|next| next.waits) {
                worker.barrier_while(|| {
                    // Few enough that the end of the wait is seen soon.
                    if let Some((lines, rest)) = soon.split_at_checked(16 * 64) {
                        prefetch(ctx.isa, lines);
                        soon = rest;
                    }
                });
            }
            if let (Some(Work { bytes, products }), Some(start)) = (work, start) {
                kernels.push(KernelTime {
                    selection: *selection,
                    nanos: nanos_since(start),
                    bytes,
                    products,
                });
            }
        }
        if timed {
            *lock(&self.flight.kernels) = kernels;
        }
        self.finished.store(true, Ordering::Release);
    }
}

impl Drop for StepJob {
    /// The pool lets go of a job after the last worker has left it, whether it ended or panicked.
    fn drop(&mut self) {
        if let Some(signal) = lock(&self.done).take() {
            let result = if self.finished.load(Ordering::Acquire) {
                std::mem::take(&mut *lock(&self.refused)).error().map_or(Ok(()), Err)
            } else {
                Err(DeviceError::Lost("a worker thread panicked; this is a fault of the program".into()))
            };
            *lock(&self.flight.outcome) = Some(result.clone());
            signal.set(result);
        }
    }
}
