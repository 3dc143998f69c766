//! The device as the engine sees it.

use std::sync::Arc;

use graph::backend::{
    Backend, CompileOptions, DeviceError, HOST_MEMORY, KvType, Plan, Reading, Reopening, RowSource,
    StateDesc, StateHandle, WeightDesc, WeightHandle,
};
use graph::{Fence, Graph};

use crate::adapter::{self, AdapterInfo, GpuOptions};
use crate::compile::compile;
use crate::device::Gpu;
use crate::slab::SharedSlabs;
use crate::state::{self, GpuState};
use crate::weight::GpuWeight;

/// A GPU as a device.
pub struct GpuBackend {
    gpu: Arc<Gpu>,
    slabs: SharedSlabs,
    name: String,
    options: GpuOptions,
}

impl GpuBackend {
    /// Opens a device; `name` is how the user calls it.
    ///
    /// # Errors
    /// There is no such adapter, or its driver refuses.
    pub async fn open(name: &str, options: &GpuOptions) -> Result<GpuBackend, DeviceError> {
        let gpu = adapter::open(options).await?;
        let (name, options) = (name.to_owned(), options.clone());
        Ok(GpuBackend { gpu, slabs: SharedSlabs::default(), name, options })
    }

    /// The adapter.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.gpu.info
    }

    /// Bytes read and written a second when one half of `bytes` of the device's memory is copied to the other.
    ///
    /// # Errors
    /// No memory for the buffers, or the device is lost.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn copy_bandwidth(&self, bytes: u64) -> Result<f64, DeviceError> {
        crate::copy::bandwidth(&self.gpu, bytes)
    }

    /// The most bytes that [`GpuBackend::copy_bandwidth`] takes: both buffers as large as kernels see one whole.
    pub fn copy_limit(&self) -> u64 {
        2 * self.gpu.binding_limit()
    }

    /// The words of a state as they lie on the device, for tests of what kernels leave there; `None` when it is none of this
    /// device.
    ///
    /// # Errors
    /// No memory for the copy, or the device is lost.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn state_words(&self, state: &StateHandle) -> Result<Option<Vec<u32>>, DeviceError> {
        match state.downcast_ref::<GpuState>().filter(|s| Arc::ptr_eq(&s.gpu, &self.gpu)) {
            Some(state) => crate::copy::read(&self.gpu, &state.buffer).map(Some),
            None => Ok(None),
        }
    }

    /// The state behind a handle.
    fn own<'s>(&self, state: &'s StateHandle) -> Result<&'s GpuState, DeviceError> {
        let own = state.downcast_ref::<GpuState>().filter(|s| Arc::ptr_eq(&s.gpu, &self.gpu));
        own.ok_or_else(|| DeviceError::Binding {
            port: "state".into(),
            problem: "was made by another backend".into(),
        })
    }

    /// Takes the device away from everything on it, for tests of what happens then.
    pub fn lose(&self) {
        self.gpu.lose();
    }

    /// From now on waiting for the device fails as when its driver has lost it: nobody is called back. For tests of what happens
    /// then.
    pub fn lose_in_driver(&self) {
        self.gpu.faults.broken.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Backend for GpuBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        crate::describe(&self.gpu)
    }

    fn memory_limit(&self) -> Option<u64> {
        // What a software adapter states is a constant of its driver.
        self.gpu.info.memory.filter(|_| self.gpu.info.kind != "software")
    }

    fn memory_name(&self) -> Option<String> {
        if matches!(self.gpu.info.kind, "software" | "integrated") {
            return Some(HOST_MEMORY.to_owned());
        }
        // The place on the bus, which is one whatever the API; where that is not told, the place among the adapters.
        let AdapterInfo { name, api, .. } = &self.gpu.info;
        let place = self.gpu.device.adapter_info().device_pci_bus_id;
        let listed = || format!("{api} {name} {}", self.options.adapter.unwrap_or(0));
        Some(if place.is_empty() { listed() } else { place })
    }

    fn kv_types(&self) -> &[KvType] {
        &[KvType::F32, KvType::F16]
    }

    fn state_fits(&self, desc: &StateDesc) -> bool {
        4 * state::words(desc) as u64 <= self.gpu.binding_limit()
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn reopen(&self) -> Reopening {
        let (name, options) = (self.name.clone(), self.options.clone());
        Box::pin(async move {
            let opened = GpuBackend::open(&name, &options).await?;
            Ok(Arc::new(opened) as Arc<dyn Backend>)
        })
    }

    fn weight(&self, desc: &WeightDesc, source: &dyn RowSource) -> Result<WeightHandle, DeviceError> {
        Ok(Arc::new(GpuWeight::pack(&self.gpu, &self.slabs, desc, source)?))
    }

    fn state(&self, desc: &StateDesc) -> Result<StateHandle, DeviceError> {
        Ok(Arc::new(GpuState::new(&self.gpu, desc)?))
    }

    fn entry_bytes(&self, state: &StateHandle) -> Result<usize, DeviceError> {
        Ok(4 * self.own(state)?.entry_words()?)
    }

    fn read_state(&self, state: &StateHandle, entries: &[u32]) -> Result<Reading, DeviceError> {
        self.own(state)?.read(entries)
    }

    fn write_state(&self, state: &StateHandle, entries: &[u32], bytes: &[u8]) -> Result<Fence, DeviceError> {
        self.own(state)?.write(entries, bytes)
    }

    fn compile(&self, graph: &Graph, options: &CompileOptions) -> Result<Arc<dyn Plan>, DeviceError> {
        Ok(Arc::new(compile(&self.gpu, graph, options)?))
    }
}
