//! Compiled plans by identity.

use std::collections::HashMap;
use std::sync::Arc;

use crate::backend::{Backend, CompileOptions, DeviceError, Plan};
use crate::graph::Graph;
use crate::identity::Identity;

/// One compilation per identity. Never evicts, because a plan may be about to be submitted; callers bound it with
/// buckets.
#[derive(Default)]
pub struct PlanCache {
    plans: HashMap<Identity, Arc<dyn Plan>>,
}

impl PlanCache {
    /// An empty cache.
    pub fn new() -> PlanCache {
        PlanCache::default()
    }

    /// The plan for a graph, compiled on first use.
    ///
    /// # Errors
    /// Those of [`Backend::compile`].
    pub fn compile(
        &mut self,
        backend: &dyn Backend,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Plan>, DeviceError> {
        let how = format!("{} {} {:?}", backend.name(), backend.description(), options.precision);
        let id = Identity::of(graph, &how);
        if let Some(plan) = self.plans.get(&id) {
            return Ok(plan.clone());
        }
        let plan = backend.compile(graph, options)?;
        self.plans.insert(id, plan.clone());
        Ok(plan)
    }

    /// How many plans are held.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// True when no plan is held.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}
