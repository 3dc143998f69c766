//! The backend: packs weights, owns states, compiles graphs into lists of kernels that all workers walk together.

mod compile;
mod copy;
mod division;
mod experts;
mod gated;
mod instance;
mod operand;
mod order;
mod sample;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod weight;
mod work;

use std::sync::{Arc, Mutex, PoisonError};

use graph::backend::{
    Backend, CompileOptions, DeviceError, HOST_MEMORY, KvType, Plan, Reading, Reopening, RowSource,
    StateDesc, StateHandle, WeightDesc, WeightHandle,
};
use graph::{Fence, Graph};

use crate::isa::CpuIsa;
use crate::memory::HugeBuf;
use crate::pool::{Pool, PoolError, PoolOptions};

use state::CpuState;
use weight::CpuWeight;

/// How the backend is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Worker threads; 0 is one per processor.
    pub threads: usize,
    /// Instruction set; `None` is the best of this CPU.
    pub isa: Option<CpuIsa>,
}

/// The CPU as a device.
pub struct CpuBackend {
    shared: Arc<Shared>,
}

/// What plans and their instances share.
struct Shared {
    pool: Pool,
    isa: CpuIsa,
    /// One arena for all plans: submissions run one after another on the pool.
    arena: Mutex<Arc<Arena>>,
}

/// Storage of intermediates, written by the job that runs.
struct Arena {
    buffer: HugeBuf,
}

pub(super) fn memory_error(what: impl Into<String>, bytes: usize) -> DeviceError {
    DeviceError::Memory { device: "cpu".into(), what: what.into(), bytes: bytes as u64 }
}

impl CpuBackend {
    /// Starts the workers.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn new(options: CpuOptions) -> Result<CpuBackend, PoolError> {
        let pool = Pool::new(PoolOptions { threads: options.threads, ..PoolOptions::default() })?;
        let isa = options.isa.unwrap_or_else(CpuIsa::detect);
        let empty = HugeBuf::zeroed(0).expect("an empty buffer takes no memory");
        let arena = Mutex::new(Arc::new(Arena { buffer: empty }));
        Ok(CpuBackend { shared: Arc::new(Shared { pool, isa, arena }) })
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// Instruction set in use.
    pub fn isa(&self) -> CpuIsa {
        self.shared.isa
    }

    /// The workers, for measurements on the same threads.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }
}

impl Shared {
    /// The arena, grown to at least `bytes`. Plans made before keep the one they have.
    fn arena(&self, bytes: usize) -> Result<Arc<Arena>, DeviceError> {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        if arena.buffer.len() < bytes {
            let buffer = HugeBuf::zeroed(bytes).map_err(|_| memory_error("intermediates", bytes))?;
            *arena = Arc::new(Arena { buffer });
        }
        Ok(arena.clone())
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        "cpu"
    }

    fn description(&self) -> String {
        // The number of threads is left out: it does not change a bit of any answer.
        format!("cpu {}", self.shared.isa)
    }

    /// Workers that wait for the host to draw a token do not read weights: 2 % of a step of a 1.5B model, 10 of a 270M one.
    fn runs_ahead(&self) -> bool {
        true
    }

    fn memory_limit(&self) -> Option<u64> {
        crate::memory::available_bytes()
    }

    fn memory_name(&self) -> Option<String> {
        Some(HOST_MEMORY.to_owned())
    }

    fn kv_types(&self) -> &[KvType] {
        &KvType::ALL
    }

    fn reopen(&self) -> Reopening {
        // A worker that panicked has left the pool fit for further jobs.
        let again: Arc<dyn Backend> = Arc::new(CpuBackend { shared: self.shared.clone() });
        Box::pin(std::future::ready(Ok(again)))
    }

    fn weight(&self, desc: &WeightDesc, source: &dyn RowSource) -> Result<WeightHandle, DeviceError> {
        Ok(Arc::new(CpuWeight::pack(&self.shared, desc, source)?))
    }

    fn state(&self, desc: &StateDesc) -> Result<StateHandle, DeviceError> {
        Ok(Arc::new(CpuState::new(self.shared.clone(), desc)?))
    }

    fn entry_bytes(&self, state: &StateHandle) -> Result<usize, DeviceError> {
        Ok(4 * copy::own(&self.shared, state)?.entry_words())
    }

    fn read_state(&self, state: &StateHandle, entries: &[u32]) -> Result<Reading, DeviceError> {
        copy::read(&self.shared, copy::own(&self.shared, state)?, entries)
    }

    fn write_state(&self, state: &StateHandle, entries: &[u32], bytes: &[u8]) -> Result<Fence, DeviceError> {
        copy::write(&self.shared, copy::own(&self.shared, state)?, entries, bytes)
    }

    fn compile(&self, graph: &Graph, options: &CompileOptions) -> Result<Arc<dyn Plan>, DeviceError> {
        Ok(Arc::new(compile::compile(self.shared.clone(), graph, options)?))
    }
}
