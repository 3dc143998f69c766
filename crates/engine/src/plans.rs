//! The plans of a model: for each bucket of rows as many instances as steps may be in flight, all on the same weights and
//! states; and steps under way.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use graph::backend::{
    Backend, Bindings, CompileOptions, DeviceError, Instance, Precision, StateDesc, StepProfile, WeightDesc,
    WeightHandle,
};
use graph::{Buckets, Fence, Graph, PlanReport, PortKind, rewrite};
use models::{Model, RECURRENT_CHUNK, StepLimits};
use tensor::DType;

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
#[derive(Clone, Copy)]
pub(crate) struct Recipe {
    pub(crate) precision: Precision,
    pub(crate) kv: DType,
    pub(crate) size: CacheSize,
    /// Most rows of prompts in a step.
    pub(crate) chunk: usize,
    pub(crate) taps: bool,
    /// Tokens are drawn on the device, and a step may be submitted before those of the one before it are read.
    pub(crate) ahead: bool,
    /// Kernels are timed.
    pub(crate) profile: bool,
}

impl Recipe {
    /// Steps in flight, at most.
    pub(crate) fn depth(&self) -> usize {
        if self.ahead { 2 } else { 1 }
    }
}

/// Compiled plans with their reports.
pub(crate) struct Plans {
    buckets: Buckets,
    /// For each bucket, its instances.
    instances: Vec<Vec<Box<dyn Instance>>>,
    /// For each bucket, the instances that no step uses.
    free: Vec<Vec<usize>>,
    reports: Vec<PlanReport>,
    /// Names of the inputs and scalars that the model's plans declare.
    declared: Vec<String>,
    /// What the weights are.
    pub(crate) digest: WeightDigest,
    pub(crate) limits: StepLimits,
}

/// A step under way.
pub(crate) struct Run {
    bucket: usize,
    instance: usize,
    fence: Fence,
    arrays: StepArrays,
}

fn model_error(e: impl std::fmt::Display) -> EngineError {
    EngineError::Model(e.to_string())
}

impl Plans {
    /// Records and compiles a plan per bucket, packs the weights, allocates the states.
    pub(crate) fn build(
        model: &Model,
        backend: &dyn Backend,
        recipe: &Recipe,
        progress: Progress,
    ) -> Result<Plans, EngineError> {
        let Recipe { precision, kv, size, chunk, taps, ahead, profile } = *recipe;
        let (mut rows, mut outs) = (chunk.max(size.slots), size.slots.max(SCORE_ROWS));
        if model.info().recurrent {
            // A prompt advances by whole cuts, so there must be room for one beside all that decode.
            (rows, outs) = (chunk + size.slots, RECURRENT_CHUNK + size.slots);
        }
        let outs = outs.min(rows);
        let limits = StepLimits {
            rows,
            seqs: size.slots,
            outs,
            pages: size.context.div_ceil(tensor::ops::KV_BLOCK),
            blocks: size.blocks,
            slots: size.slots,
        };
        // A bucket changes only how much is allocated and, on a GPU, the grid; never a bit of a row.
        let mut sizes: Vec<usize> = [1, 8, 64].into_iter().filter(|s| *s < limits.rows).collect();
        sizes.push(limits.rows);
        let buckets = Buckets::new(sizes.clone()).map_err(model_error)?;

        let mut bindings = Bindings::default();
        let mut digest = WeightDigest::default();
        let (mut instances, mut reports) = (vec![], vec![]);
        // The largest first: it sizes whatever storage plans share.
        for rows in sizes.into_iter().rev() {
            let limits = StepLimits { rows, outs: outs.min(rows), ..limits };
            let mut graph = model.record(&limits, kv, taps).map_err(model_error)?;
            rewrite::standard(&mut graph);
            if ahead {
                rewrite::ahead::draw_tokens(&mut graph, size.slots).map_err(model_error)?;
            }
            if bindings.weights.is_empty() {
                bindings.weights = load(model, backend, &graph, &mut digest, progress)?;
                for port in graph.ports.iter().filter(|p| p.kind == PortKind::State) {
                    let desc = StateDesc { name: port.name.clone(), dtype: port.dtype, shape: port.shape };
                    bindings.states.insert(port.name.clone(), backend.state(&desc)?);
                }
            }
            let label = format!("{} rows", rows);
            let plan = backend.compile(&graph, &CompileOptions { label, precision, profile })?;
            reports.push(plan.report().clone());
            let copies = (0..recipe.depth()).map(|_| plan.instance(&bindings));
            instances.push(copies.collect::<Result<Vec<_>, _>>()?);
        }
        instances.reverse();
        reports.reverse();
        let report: &PlanReport = &reports[0];
        let inputs = report.ports.iter().filter(|p| p.kind == PortKind::Input).map(|p| p.name.clone());
        let declared = inputs.chain(report.scalars.iter().cloned()).collect();
        let free = instances.iter().map(|copies| (0..copies.len()).collect()).collect();
        Ok(Plans { buckets, instances, free, reports, declared, digest, limits })
    }

    /// Submits a step; `outputs` are to be read when it has ended.
    pub(crate) fn start(&mut self, arrays: StepArrays, outputs: &[&str]) -> Result<Run, EngineError> {
        let size = self.buckets.for_len(arrays.rows()).map_err(model_error)?;
        let bucket = self.buckets.sizes().partition_point(|s| *s < size);
        let Some(index) = self.free[bucket].pop() else {
            return Err(DeviceError::Busy("every instance of the plan has a step in flight".into()).into());
        };
        let instance = &mut self.instances[bucket][index];
        let encoded = arrays.with_inputs(&self.declared, None, outputs, |inputs| instance.encode(inputs));
        match encoded {
            Ok(encoded) => {
                let fence = instance.submit(encoded);
                Ok(Run { bucket, instance: index, fence, arrays })
            }
            Err(error) => {
                self.free[bucket].push(index);
                Err(error.into())
            }
        }
    }

    /// Whether a step has ended, and how.
    pub(crate) fn poll(&mut self, run: &mut Run, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        Pin::new(&mut run.fence).poll(cx)
    }

    /// An f32 output of a step that has ended.
    pub(crate) fn output(&self, run: &Run, name: &str) -> Result<&[f32], DeviceError> {
        self.instances[run.bucket][run.instance].output(name)
    }

    /// A u32 output of a step that has ended.
    pub(crate) fn words(&self, run: &Run, name: &str) -> Result<&[u32], DeviceError> {
        self.instances[run.bucket][run.instance].words(name)
    }

    /// Times of a step that has ended, with the index of its plan's report.
    pub(crate) fn profile(&self, run: &Run) -> Option<(usize, StepProfile)> {
        Some((run.bucket, self.instances[run.bucket][run.instance].profile()?))
    }

    /// Lets another step have the place of one that has ended, and its arrays.
    pub(crate) fn finish(&mut self, run: Run) -> StepArrays {
        self.free[run.bucket].push(run.instance);
        run.arrays
    }

    pub(crate) fn reports(&self) -> &[PlanReport] {
        &self.reports
    }
}

/// Packs every weight of a graph and adds it to the digest, releasing the file's pages behind it.
fn load(
    model: &Model,
    backend: &dyn Backend,
    graph: &Graph,
    digest: &mut WeightDigest,
    progress: Progress,
) -> Result<HashMap<String, WeightHandle>, EngineError> {
    let weights = model.weights(graph).map_err(model_error)?;
    let size = |w: &WeightDesc| w.dtype.bytes_for(w.shape.elements()).unwrap_or(0) as u64;
    let total: u64 = weights.iter().map(|w| size(w.desc())).sum();
    let mut done = 0;
    let mut handles = HashMap::new();
    for rows in &weights {
        let desc = rows.desc();
        handles.insert(desc.name.clone(), backend.weight(desc, rows)?);
        digest.add(desc, rows)?;
        rows.release();
        done += size(desc);
        progress(done, total);
    }
    Ok(handles)
}
