//! The plans of a model: for each bucket of rows as many instances as steps may be in flight, all on the same weights and
//! states; and steps under way. A model may be split by layers over devices, each with its own weights, states and plans: a
//! step then goes through them one after another, and rows of hidden states are all that passes between them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use graph::backend::{
    Backend, Bindings, CompileOptions, DeviceError, Instance, KvType, Precision, StateDesc, StateHandle,
    StepProfile, WeightDesc,
};
use graph::{Buckets, Fence, Graph, PlanReport, PortKind, rewrite};
use models::{IDS, LOGITS, Model, ModelInfo, RECURRENT_CHUNK, StepLimits};

use crate::cache::CacheSize;
use crate::error::EngineError;
use crate::fingerprint::WeightDigest;
use crate::step::StepArrays;

/// Rows whose logits one step gives at most, when a request scores its prompt. Bounds the logits buffer: 32 rows of
/// 262 144 tokens are 32 MiB.
pub(crate) const SCORE_ROWS: usize = 32;

/// Progress of loading, called after each weight with bytes packed so far and in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// What plans are made for.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) precision: Precision,
    pub(crate) kv_type: KvType,
    pub(crate) size: CacheSize,
    /// Most rows of prompts in a step.
    pub(crate) chunk: usize,
    pub(crate) taps: bool,
    /// Tokens are drawn on the device, and a step may be submitted before those of the one before it are read.
    pub(crate) ahead: bool,
    /// The layers of each device.
    pub(crate) stages: Vec<Range<usize>>,
    /// Kernels are timed.
    pub(crate) profile: bool,
}

impl Recipe {
    /// Steps in flight, at most.
    pub(crate) fn depth(&self) -> usize {
        if self.ahead { 2 } else { 1 }
    }

    /// The step of a bucket, a graph for each device.
    fn graphs(&self, model: &Model, limits: &StepLimits) -> Result<Vec<Graph>, EngineError> {
        // The rows that go from one device to the next are those that taps record: the hidden states before a layer.
        let cuts: Vec<String> = self.stages.iter().skip(1).map(|s| models::hidden(s.start)).collect();
        let taps = self.taps || !cuts.is_empty();
        let mut graph = model.record(limits, self.kv_type.dtype(), taps).map_err(model_error)?;
        if cuts.is_empty() {
            rewrite::standard(&mut graph);
            if self.ahead {
                rewrite::ahead::draw_tokens(&mut graph, IDS, LOGITS, self.size.slots).map_err(model_error)?;
            }
            return Ok(vec![graph]);
        }
        let cuts: Vec<&str> = cuts.iter().map(String::as_str).collect();
        graph.retain_outputs(|name| self.taps || name == LOGITS || cuts.contains(&name));
        let mut graphs = graph::cut(&graph, &cuts).map_err(model_error)?;
        graphs.iter_mut().for_each(rewrite::standard);
        Ok(graphs)
    }
}

/// Compiled plans with their reports.
pub(crate) struct Plans {
    buckets: Buckets,
    /// One for each device, in the order in which a step goes through them.
    stages: Vec<Stage>,
    /// For each bucket, the instances that no step uses.
    free: Vec<Vec<usize>>,
    /// Smallest bucket first, and for each the stages in order.
    reports: Vec<PlanReport>,
    /// What sessions keep something in: the KV caches and recurrent states, in the order of the layers.
    pub(crate) states: Vec<StageState>,
    /// What the weights are.
    pub(crate) digest: WeightDigest,
    pub(crate) limits: StepLimits,
}

/// A state that outlives requests.
pub(crate) struct StageState {
    pub(crate) name: String,
    /// Its device, by its place among the stages.
    pub(crate) stage: usize,
    pub(crate) handle: StateHandle,
    /// Its entries are blocks; else they are slots.
    pub(crate) blocks: bool,
}

/// The part of a model that one device computes.
struct Stage {
    /// For each bucket, its instances.
    instances: Vec<Vec<Box<dyn Instance>>>,
    /// Names of the inputs and scalars that the plans declare.
    declared: Vec<String>,
    /// Names of the outputs.
    outputs: Vec<String>,
    /// The output of the stage before that is an input of this one.
    given: Option<String>,
}

/// A step under way.
pub(crate) struct Run {
    bucket: usize,
    instance: usize,
    stage: usize,
    fence: Fence,
    arrays: StepArrays,
    /// Outputs to be read in the end.
    outputs: Vec<Cow<'static, str>>,
    /// Rows that stages refused: the others go on.
    refused: Option<(String, String, BTreeSet<u32>)>,
}

fn model_error(e: impl std::fmt::Display) -> EngineError {
    EngineError::Model(e.to_string())
}

impl Plans {
    /// Records and compiles a plan per bucket and device, packs the weights, allocates the states.
    pub(crate) fn build(
        model: &Model,
        devices: &[Arc<dyn Backend>],
        recipe: &Recipe,
        progress: Progress,
    ) -> Result<Plans, EngineError> {
        let Recipe { precision, size, chunk, profile, .. } = *recipe;
        let (mut rows, mut outs) = (chunk.max(size.sequences), size.sequences.max(SCORE_ROWS));
        if model.info().recurrent() {
            // A prompt advances by whole cuts, so there must be room for one beside all that decode.
            (rows, outs) = (chunk + size.sequences, RECURRENT_CHUNK + size.sequences);
        }
        let outs = outs.min(rows);
        let limits = StepLimits {
            rows,
            seqs: size.sequences,
            outs,
            pages: size.context.div_ceil(tensor::ops::KV_BLOCK),
            blocks: size.blocks,
            slots: size.slots,
        };
        // A bucket changes only how much is allocated and, on a GPU, the grid; never a bit of a row.
        let mut sizes: Vec<usize> = [1, 8, 64].into_iter().filter(|s| *s < limits.rows).collect();
        sizes.push(limits.rows);
        let buckets = Buckets::new(sizes.clone()).map_err(model_error)?;

        let mut digest = WeightDigest::default();
        let mut bindings: Vec<Bindings> = vec![];
        let mut stages: Vec<Stage> = vec![];
        let mut reports = vec![];
        // The largest first: it sizes whatever storage plans share.
        for rows in sizes.iter().rev() {
            let limits = StepLimits { rows: *rows, outs: outs.min(*rows), ..limits };
            let graphs = recipe.graphs(model, &limits)?;
            if bindings.is_empty() {
                bindings = load(model, devices, &graphs, &mut digest, progress)?;
                stages = graphs.iter().zip(&recipe.stages).map(|(g, layers)| Stage::new(g, layers)).collect();
            }
            let mut each = vec![];
            for (i, (graph, device)) in graphs.iter().zip(devices).enumerate() {
                let mut label = format!("{rows} rows");
                if devices.len() > 1 {
                    let Range { start, end } = recipe.stages[i];
                    label = format!("{label}, layers {start} to {}", end - 1);
                }
                let plan = device.compile(graph, &CompileOptions { label, precision, profile })?;
                each.push(plan.report().clone());
                let copies = (0..recipe.depth()).map(|_| plan.instance(&bindings[i]));
                stages[i].instances.insert(0, copies.collect::<Result<_, _>>()?);
            }
            reports.splice(0..0, each);
        }
        let free = sizes.iter().map(|_| (0..recipe.depth()).collect()).collect();
        let states = kept_states(model.info(), &bindings);
        Ok(Plans { buckets, stages, free, reports, states, digest, limits })
    }

    /// Submits a step to the first device; `outputs` are to be read when it has ended.
    pub(crate) fn start(
        &mut self,
        arrays: StepArrays,
        outputs: Vec<Cow<'static, str>>,
    ) -> Result<Run, EngineError> {
        let size = self.buckets.for_len(arrays.rows()).map_err(model_error)?;
        let bucket = self.buckets.sizes().partition_point(|s| *s < size);
        let Some(instance) = self.free[bucket].pop() else {
            return Err(DeviceError::Busy("every instance of the plan has a step in flight".into()).into());
        };
        match self.submit((bucket, instance), 0, &arrays, &outputs) {
            Ok(fence) => Ok(Run { bucket, instance, stage: 0, fence, arrays, outputs, refused: None }),
            Err(error) => {
                self.free[bucket].push(instance);
                Err(error.into())
            }
        }
    }

    /// Submits a step to the device of a stage, with the rows that the stage before has given.
    fn submit(
        &mut self,
        (bucket, instance): (usize, usize),
        stage: usize,
        arrays: &StepArrays,
        outputs: &[Cow<'static, str>],
    ) -> Result<Fence, DeviceError> {
        let (before, from) = self.stages.split_at_mut(stage);
        let (from, after) = from.split_at_mut(1);
        let Stage { instances, declared, given, outputs: own } = &mut from[0];
        let next = after.first().and_then(|stage| stage.given.as_deref());
        let read = |name: &&str| own.iter().any(|own| own == name);
        let mut wanted: Vec<&str> = outputs.iter().map(|name| &**name).filter(read).collect();
        wanted.extend(next.filter(|name| !wanted.contains(name)));
        let given = match (before.last(), given) {
            (Some(before), Some(name)) => {
                Some((name.as_str(), before.instances[bucket][instance].output(name)?))
            }
            _ => None,
        };
        let instance = &mut instances[bucket][instance];
        let encoded = arrays.with_inputs(declared, given, &wanted, |inputs| instance.encode(inputs))?;
        Ok(instance.submit(encoded))
    }

    /// Whether a step has ended, and how. It goes from device to device here.
    pub(crate) fn poll(&mut self, run: &mut Run, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        loop {
            let Poll::Ready(result) = Pin::new(&mut run.fence).poll(cx) else { return Poll::Pending };
            match result {
                Ok(()) => {}
                Err(DeviceError::Numeric { op, problem, rows }) if !rows.is_empty() => {
                    let (_, _, refused) = run.refused.get_or_insert((op, problem, BTreeSet::new()));
                    refused.extend(rows);
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            run.stage += 1;
            if run.stage == self.stages.len() {
                return Poll::Ready(match run.refused.take() {
                    None => Ok(()),
                    Some((op, problem, rows)) => {
                        Err(DeviceError::Numeric { op, problem, rows: rows.into_iter().collect() })
                    }
                });
            }
            match self.submit((run.bucket, run.instance), run.stage, &run.arrays, &run.outputs) {
                Ok(fence) => run.fence = fence,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// What gives an output of a step that has ended.
    fn giver(&self, run: &Run, name: &str) -> Result<&dyn Instance, DeviceError> {
        let stage = self.stages.iter().find(|stage| stage.outputs.iter().any(|output| output == name));
        match stage {
            Some(stage) => Ok(&*stage.instances[run.bucket][run.instance]),
            None => {
                let problem = "is not an output of the model's step".to_owned();
                Err(DeviceError::Binding { port: name.to_owned(), problem })
            }
        }
    }

    /// An f32 output of a step that has ended.
    pub(crate) fn output(&self, run: &Run, name: &str) -> Result<&[f32], DeviceError> {
        self.giver(run, name)?.output(name)
    }

    /// A u32 output of a step that has ended.
    pub(crate) fn words(&self, run: &Run, name: &str) -> Result<&[u32], DeviceError> {
        self.giver(run, name)?.words(name)
    }

    /// Times of a step that has ended on each device that takes them, with the index of the plan's report.
    pub(crate) fn profiles(&self, run: &Run) -> impl Iterator<Item = (usize, StepProfile)> {
        let first = run.bucket * self.stages.len();
        let times = |stage: &Stage| stage.instances[run.bucket][run.instance].profile();
        self.stages.iter().enumerate().filter_map(move |(i, stage)| Some((first + i, times(stage)?)))
    }

    /// Lets another step have the place of one that has ended, and its arrays.
    pub(crate) fn finish(&mut self, run: Run) -> StepArrays {
        self.free[run.bucket].push(run.instance);
        run.arrays
    }

    /// Drops every instance, and with them weights and states that nobody else holds. No step can be started any more.
    pub(crate) fn release(&mut self) {
        self.stages.clear();
        self.states.clear();
        self.free.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn reports(&self) -> &[PlanReport] {
        &self.reports
    }
}

/// The KV caches and recurrent states of a model among what is bound on each device.
fn kept_states(info: &ModelInfo, bindings: &[Bindings]) -> Vec<StageState> {
    let caches = info.kv.iter().map(|kv| (models::kv_state(kv.layer), true));
    let rings = info.rings.iter().map(|ring| (models::ring_state(ring.layer), false));
    let bound = |(name, blocks): (String, bool)| {
        let mut stages = bindings.iter().enumerate();
        let (stage, handle) = stages.find_map(|(i, b)| Some((i, b.states.get(&name)?.clone())))?;
        Some(StageState { name, stage, handle, blocks })
    };
    caches.chain(rings).filter_map(bound).collect()
}

impl Stage {
    /// Without instances.
    fn new(graph: &Graph, layers: &Range<usize>) -> Stage {
        let names = |kind| graph.ports.iter().filter(move |p| p.kind == kind).map(|p| p.name.clone());
        let declared = names(PortKind::Input).chain(graph.scalars.iter().cloned()).collect();
        let given = (layers.start > 0).then(|| models::hidden(layers.start));
        Stage { instances: vec![], declared, outputs: names(PortKind::Output).collect(), given }
    }
}

/// Packs every weight of the graphs on their devices, adds it to the digest and releases the file's pages behind it;
/// allocates the states.
fn load(
    model: &Model,
    devices: &[Arc<dyn Backend>],
    graphs: &[Graph],
    digest: &mut WeightDigest,
    progress: Progress,
) -> Result<Vec<Bindings>, EngineError> {
    let weights = graphs.iter().map(|graph| model.weights(graph)).collect::<Result<Vec<_>, _>>();
    let weights = weights.map_err(model_error)?;
    let size = |w: &WeightDesc| w.dtype.bytes_for(w.shape.elements()).unwrap_or(0) as u64;
    let total: u64 = weights.iter().flatten().map(|w| size(w.desc())).sum();
    let mut done = 0;
    let mut all = vec![];
    for ((graph, weights), device) in graphs.iter().zip(&weights).zip(devices) {
        let mut bindings = Bindings::default();
        for rows in weights {
            let desc = rows.desc();
            bindings.weights.insert(desc.name.clone(), device.weight(desc, rows)?);
            digest.add(desc, rows)?;
            rows.release();
            done += size(desc);
            progress(done, total);
        }
        for port in graph.ports.iter().filter(|p| p.kind == PortKind::State) {
            let desc = StateDesc { name: port.name.clone(), dtype: port.dtype, shape: port.shape };
            bindings.states.insert(port.name.clone(), device.state(&desc)?);
        }
        all.push(bindings);
    }
    Ok(all)
}
