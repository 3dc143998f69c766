//! An open device: pipelines, errors, and what waits for submissions.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use graph::Signal;
use graph::backend::DeviceError;

use crate::adapter::AdapterInfo;
use crate::kernel::{Binding, Kernel};
use crate::select::{Capabilities, Families};

/// A device with everything that plans on it share.
pub(crate) struct Gpu {
    pub(crate) info: AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) capabilities: Capabilities,
    pub(crate) faults: Arc<Faults>,
    pipelines: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    /// Whether pairs of kernels give the same bits, as far as they were compared.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) agreements: Mutex<HashMap<[Kernel; 2], bool>>,
    /// Storage that all plans share, by name: submissions run one after another.
    scratch: Mutex<HashMap<&'static str, wgpu::Buffer>>,
    #[cfg(not(target_arch = "wasm32"))]
    poller: crate::poll::Poller,
}

/// What went wrong on a device. Callbacks hold this and not the device, which must not be dropped inside of one.
#[derive(Default)]
pub(crate) struct Faults {
    /// The first error nobody has been told of.
    error: Mutex<Option<DeviceError>>,
    /// Why the device is gone.
    lost: Mutex<Option<String>>,
    /// Submissions under way.
    awaited: Mutex<Vec<Weak<Awaited>>>,
    /// Waiting for the device panics from now on, for tests.
    pub(crate) broken: AtomicBool,
}

/// A submission under way: what was read back of it, or the error, and who waits for it.
#[derive(Default)]
pub(crate) struct Awaited {
    pub(crate) read: OnceLock<Result<Vec<u32>, DeviceError>>,
    signal: Mutex<Option<Signal>>,
}

impl Awaited {
    /// The submission ends, unless it has: the first to say how is believed.
    pub(crate) fn end(&self, read: Result<Vec<u32>, DeviceError>, result: Result<(), DeviceError>) {
        if self.read.set(read).is_ok()
            && let Some(signal) = lock(&self.signal).take()
        {
            signal.set(result);
        }
    }
}

impl Faults {
    /// Keeps an error until somebody asks.
    pub(crate) fn note(&self, error: wgpu::Error) {
        let error = match error {
            wgpu::Error::OutOfMemory { .. } => {
                DeviceError::Memory { device: "gpu".into(), what: "a buffer or pipeline".into(), bytes: 0 }
            }
            other => DeviceError::Lost(format!("the driver refused: {other}")),
        };
        lock(&self.error).get_or_insert(error);
    }

    /// The error that the driver has reported since the last call, or that the device is lost.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        if let Some(reason) = self.lost() {
            return Err(DeviceError::Lost(reason));
        }
        lock(&self.error).take().map_or(Ok(()), Err)
    }

    /// A submission that is to end when the device is lost, if not before.
    pub(crate) fn expect(&self, signal: Signal) -> Arc<Awaited> {
        let awaited = Arc::new(Awaited { signal: Mutex::new(Some(signal)), ..Awaited::default() });
        let mut all = lock(&self.awaited);
        all.retain(|other| other.upgrade().is_some_and(|other| other.read.get().is_none()));
        all.push(Arc::downgrade(&awaited));
        awaited
    }

    /// The device is gone, and all submissions fail.
    pub(crate) fn lose(&self, reason: &str) {
        let reason = lock(&self.lost).get_or_insert_with(|| reason.to_owned()).clone();
        let all = std::mem::take(&mut *lock(&self.awaited));
        for awaited in all.iter().filter_map(Weak::upgrade) {
            let error = DeviceError::Lost(reason.clone());
            awaited.end(Err(error.clone()), Err(error));
        }
    }

    /// Why the device is gone, if it is.
    pub(crate) fn lost(&self) -> Option<String> {
        lock(&self.lost).clone()
    }
}

/// A pipeline with the layout of its bind group.
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    pub(crate) fn new(
        info: AdapterInfo,
        device: wgpu::Device,
        queue: wgpu::Queue,
        families: Families,
    ) -> Result<Arc<Gpu>, DeviceError> {
        let faults = Arc::new(Faults::default());
        let seen = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| seen.note(error)));
        let seen = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            seen.lose(&format!("{message} ({reason:?})"));
        });
        let limits = device.limits();
        let capabilities = Capabilities::new(&info, device.features(), &limits, families);
        let gpu = Gpu {
            #[cfg(not(target_arch = "wasm32"))]
            poller: crate::poll::Poller::new(&device, faults.clone())?,
            info,
            device,
            queue,
            limits,
            capabilities,
            faults,
            pipelines: Mutex::default(),
            #[cfg(not(target_arch = "wasm32"))]
            agreements: Mutex::default(),
            scratch: Mutex::default(),
        };
        #[cfg(not(target_arch = "wasm32"))] // where nothing can wait for an answer
        let gpu = crate::probe::run(gpu)?;
        gpu.check()?;
        Ok(Arc::new(gpu))
    }

    /// As [`Faults::check`].
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        self.faults.check()
    }

    /// A zeroed buffer.
    pub(crate) fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, DeviceError> {
        let memory = || DeviceError::Memory { device: "gpu".into(), what: what.to_owned(), bytes };
        if bytes > self.limits.max_buffer_size {
            return Err(memory());
        }
        let size = bytes.next_multiple_of(4).max(4);
        let desc = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&desc);
        self.check().map_err(|e| if matches!(e, DeviceError::Memory { .. }) { memory() } else { e })?;
        Ok(buffer)
    }

    /// The largest storage buffer that a kernel sees whole, in bytes.
    pub(crate) fn binding_limit(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size) & !255
    }

    /// Storage that all plans share, grown to at least `bytes`. Plans made before keep what they have.
    pub(crate) fn scratch(&self, what: &'static str, bytes: u64) -> Result<wgpu::Buffer, DeviceError> {
        let limit = self.binding_limit();
        if bytes > limit {
            let what = format!(
                "{what} of a step; kernels see {limit} bytes here, smaller chunks of prompt need less"
            );
            return Err(DeviceError::Memory { device: "gpu".into(), what, bytes });
        }
        let mut scratch = lock(&self.scratch);
        match scratch.get(what) {
            Some(buffer) if buffer.size() >= bytes => Ok(buffer.clone()),
            _ => {
                use wgpu::BufferUsages as U;
                // Bindings are never empty, even of what a plan does not use.
                let buffer = self.buffer(what, bytes.max(1024), U::STORAGE | U::COPY_SRC | U::COPY_DST)?;
                scratch.insert(what, buffer.clone());
                Ok(buffer)
            }
        }
    }

    /// The pipeline of a kernel, compiled at its first use.
    pub(crate) fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>, DeviceError> {
        if let Some(pipeline) = lock(&self.pipelines).get(kernel) {
            return Ok(pipeline.clone());
        }
        let name = kernel.name();
        let source = kernel.source();
        let desc = wgpu::ShaderModuleDescriptor {
            label: Some(&name),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        };
        // SAFETY: kernels index by what the compiler laid out, which lies inside of what is bound, and by step inputs that
        // `graph::validate` has let through; ids of tables and experts, which nothing validates, are compared or clamped in
        // the kernels. Their loops end: each counts up to a number that is fixed before it. With the checks, every
        // access is clamped and every loop counted, which costs a product most of its speed.
        let module =
            unsafe { self.device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked()) };
        let entry = |(i, binding): (usize, Binding)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: match binding {
                    Binding::Params | Binding::Scalars => wgpu::BufferBindingType::Uniform,
                    Binding::Read(..) => wgpu::BufferBindingType::Storage { read_only: true },
                    Binding::Arena | Binding::Write(..) => {
                        wgpu::BufferBindingType::Storage { read_only: false }
                    }
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = kernel.bindings().enumerate().map(entry).collect();
        let desc = wgpu::BindGroupLayoutDescriptor { label: Some(&name), entries: &entries };
        let layout = self.device.create_bind_group_layout(&desc);
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes its workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        self.check().map_err(|e| match e {
            DeviceError::Lost(problem) if self.faults.lost().is_none() => DeviceError::Unsupported {
                device: "gpu".into(),
                op: format!("kernel {name}"),
                reason: problem,
            },
            other => other,
        })?;
        let pipeline = Arc::new(Pipeline { pipeline, layout });
        lock(&self.pipelines).insert(kernel.clone(), pipeline.clone());
        Ok(pipeline)
    }

    /// The kernels compiled so far.
    #[cfg(test)]
    pub(crate) fn kernels(&self) -> Vec<Kernel> {
        lock(&self.pipelines).keys().cloned().collect()
    }

    /// Whole buffers for a pipeline, in the order of its bindings.
    pub(crate) fn bind<'b>(
        &self,
        pipeline: &Pipeline,
        buffers: impl IntoIterator<Item = &'b wgpu::Buffer>,
    ) -> wgpu::BindGroup {
        let entry = |(binding, buffer): (u32, &'b wgpu::Buffer)| wgpu::BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        };
        let entries: Vec<_> = (0..).zip(buffers).map(entry).collect();
        let desc = wgpu::BindGroupDescriptor { label: None, layout: &pipeline.layout, entries: &entries };
        self.device.create_bind_group(&desc)
    }

    /// Submits one dispatch.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn dispatch<'b>(
        &self,
        pipeline: &Pipeline,
        buffers: impl IntoIterator<Item = &'b wgpu::Buffer>,
        [x, y, z]: [u32; 3],
    ) {
        let group = self.bind(pipeline, buffers);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        self.queue.submit([encoder.finish()]);
    }

    /// Calls back when what was submitted before has finished.
    pub(crate) fn wake_after(&self, _submission: wgpu::SubmissionIndex) {
        #[cfg(not(target_arch = "wasm32"))]
        self.poller.wait_for(_submission);
    }

    /// Waits for all submissions, where waiting is possible.
    ///
    /// # Errors
    /// The device was lost, or the driver has refused something.
    pub(crate) fn drain(&self) -> Result<(), DeviceError> {
        #[cfg(not(target_arch = "wasm32"))]
        self.poller.drain();
        self.check()
    }

    /// Takes the device away from everything on it, for tests of what happens then.
    pub(crate) fn lose(&self) {
        self.faults.lose("taken away by a test");
        self.device.destroy();
    }
}
