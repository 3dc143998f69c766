//! The plans of a model: one instance per bucket of rows, all on the same weights and states.

use std::collections::HashMap;

use graph::backend::{
    Backend, Bindings, CompileOptions, Instance, Precision, StateDesc, WeightDesc, WeightHandle,
};
use graph::{Buckets, Graph, PlanReport, PortKind, rewrite};
use models::{Model, RECURRENT_CHUNK, StepLimits};
use tensor::DType;

use crate::cache::CacheSize;
use crate::error::EngineError;
use crate::fingerprint::WeightDigest;

/// Rows whose logits one step gives at most, when a request scores its prompt. Bounds the logits buffer: 32 rows of
/// 262 144 tokens are 32 MiB.
pub(crate) const SCORE_ROWS: usize = 32;

/// Progress of loading, called after each weight with bytes packed so far and in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// What plans are made for.
pub(crate) struct Recipe {
    pub(crate) precision: Precision,
    pub(crate) kv: DType,
    pub(crate) size: CacheSize,
    /// Most rows of prompts in a step.
    pub(crate) chunk: usize,
    pub(crate) taps: bool,
    pub(crate) profile: bool,
}

/// Compiled plans with their reports.
pub(crate) struct Plans {
    buckets: Buckets,
    instances: Vec<Box<dyn Instance>>,
    reports: Vec<PlanReport>,
    /// Names of the inputs and scalars that the model's plans declare.
    declared: Vec<String>,
    /// What the weights are.
    pub(crate) digest: WeightDigest,
    pub(crate) limits: StepLimits,
}

impl Plans {
    /// Records and compiles a plan per bucket, packs the weights, allocates the states.
    pub(crate) fn build(
        model: &Model,
        backend: &dyn Backend,
        recipe: &Recipe,
        progress: Progress,
    ) -> Result<Plans, EngineError> {
        let Recipe { precision, kv, size, chunk, taps, profile } = *recipe;
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
        let buckets = Buckets::new(sizes.clone()).map_err(|e| EngineError::Model(e.to_string()))?;

        let mut bindings = Bindings::default();
        let mut digest = WeightDigest::default();
        let (mut instances, mut reports) = (vec![], vec![]);
        // The largest first: it sizes whatever storage plans share.
        for rows in sizes.into_iter().rev() {
            let limits = StepLimits { rows, outs: outs.min(rows), ..limits };
            let mut graph = model.record(&limits, kv, taps).map_err(|e| EngineError::Model(e.to_string()))?;
            rewrite::standard(&mut graph);
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
            instances.push(plan.instance(&bindings)?);
        }
        instances.reverse();
        reports.reverse();
        let report: &PlanReport = &reports[0];
        let inputs = report.ports.iter().filter(|p| p.kind == PortKind::Input).map(|p| p.name.clone());
        let declared = inputs.chain(report.scalars.iter().cloned()).collect();
        Ok(Plans { buckets, instances, reports, declared, digest, limits })
    }

    /// The instance for so many rows, its index, and the names of the inputs and scalars it takes.
    pub(crate) fn for_rows(
        &mut self,
        rows: usize,
    ) -> Result<(usize, &mut dyn Instance, &[String]), EngineError> {
        let bucket = self.buckets.for_len(rows).map_err(|e| EngineError::Model(e.to_string()))?;
        let index = self.buckets.sizes().partition_point(|s| *s < bucket);
        Ok((index, &mut *self.instances[index], &self.declared))
    }

    pub(crate) fn instance(&self, index: usize) -> &dyn Instance {
        &*self.instances[index]
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
    let weights = model.weights(graph).map_err(|e| EngineError::Model(e.to_string()))?;
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
