//! Devices by name.

use std::sync::Arc;

use cpu::isa::CpuIsa;
use cpu::{CpuBackend, CpuOptions};
#[cfg(feature = "gpu")]
use engine::ByteSize;
#[cfg(feature = "gpu")]
use gpu::{AdapterInfo, Backends, GpuBackend, GpuOptions};
#[cfg(feature = "gpu")]
pub use gpu::{Families, Profile};
use graph::backend::Backend;

#[cfg(feature = "gpu")]
use crate::block_on::block_on;
use crate::error::Error;

/// How a device is opened. What does not concern the device that is opened is not read.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// CPU worker threads, at most [`most_threads`]; 0 is one per processor.
    pub threads: usize,
    /// CPU instruction set by name (`scalar`, `avx2`, `avx512`, `neon`, `neon-dotprod`); `None` is the best there is.
    pub isa: Option<String>,
    /// Limits and features that a GPU is opened with.
    #[cfg(feature = "gpu")]
    pub gpu_limits: Profile,
    /// GPU kernel families that are used although probing would choose others.
    #[cfg(feature = "gpu")]
    pub gpu_families: Families,
}

/// The most worker threads for each processor. More than one never computes faster; a few are of use where different
/// numbers of threads are compared.
const THREADS_PER_PROCESSOR: usize = 4;

/// Processors this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The most worker threads a CPU device takes: four for each processor this process may use.
pub fn most_threads() -> usize {
    THREADS_PER_PROCESSOR * processors()
}

/// What a device's memory and arithmetic can do at most, which speeds are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Peaks {
    /// Bytes of memory a second: those that all workers of a CPU read, or that a copy on a GPU reads and writes.
    pub memory_bytes: f64,
    /// Multiplications and additions of bytes a second, each counted as one operation; `None` where it is not measured.
    pub int_ops: Option<f64>,
}

/// What a device name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// The processors of this machine.
    Cpu,
    /// A GPU.
    Gpu {
        /// Place among [`gpu_adapters`] of the API, or the first.
        adapter: usize,
        /// The API; `None` is whichever the system has.
        api: Option<GpuApi>,
    },
}

/// What GPUs are spoken to through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuApi {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// DirectX 12.
    Dx12,
}

/// The APIs that name a device.
const APIS: [(&str, GpuApi); 3] =
    [("vulkan", GpuApi::Vulkan), ("metal", GpuApi::Metal), ("dx12", GpuApi::Dx12)];

/// The names [`open_device`] knows; `gpu:1` is the second of the adapters that `gristmill devices` lists.
pub fn device_names() -> &'static [&'static str] {
    &["cpu", "gpu", "gpu:N", "vulkan", "metal", "dx12"]
}

/// Reads a device name.
///
/// # Errors
/// An unknown name; the message lists the names and the adapters of this machine.
pub fn device_kind(name: &str) -> Result<DeviceKind, Error> {
    let api = |name| APIS.iter().find(|(n, _)| *n == name).map(|(_, api)| *api);
    match (name, name.strip_prefix("gpu:")) {
        ("cpu", _) => Ok(DeviceKind::Cpu),
        ("gpu", _) => Ok(DeviceKind::Gpu { adapter: 0, api: None }),
        (_, Some(index)) => {
            let adapter = index.parse().map_err(|_| unknown(name))?;
            Ok(DeviceKind::Gpu { adapter, api: None })
        }
        _ => api(name).map(|api| DeviceKind::Gpu { adapter: 0, api: Some(api) }).ok_or_else(|| unknown(name)),
    }
}

/// Reads the names of devices that share a model, separated by commas: `gpu:0,gpu:1`.
///
/// # Errors
/// As [`device_kind`], of the first name that is none.
pub fn device_kinds(names: &str) -> Result<Vec<DeviceKind>, Error> {
    names.split(',').map(device_kind).collect()
}

/// The GPU adapters of this machine in the order that `gpu:N` counts in.
#[cfg(feature = "gpu")]
pub fn gpu_adapters() -> Vec<AdapterInfo> {
    block_on(gpu::adapters(None))
}

/// Opens a device by the name given to `--device`.
///
/// # Errors
/// An unknown name, an instruction set this CPU lacks, too many threads or ones that the system refuses, a GPU that is not
/// there or whose driver refuses; a GPU in a build without support for them.
pub fn open_device(name: &str, options: &DeviceOptions) -> Result<Arc<dyn Backend>, Error> {
    match device_kind(name)? {
        DeviceKind::Cpu => Ok(Arc::new(open_cpu(options)?)),
        #[cfg(feature = "gpu")]
        DeviceKind::Gpu { adapter, api } => Ok(Arc::new(open_gpu(name, adapter, api, options)?)),
        #[cfg(not(feature = "gpu"))]
        DeviceKind::Gpu { .. } => Err(no_gpus(name)),
    }
}

/// Keeps the graphics library's panics off standard error, for programs: it panics on a thread of its own when a GPU is lost, which
/// requests are told as an error. Other panics go to the hook that was there.
pub fn quiet_lost_devices() {
    #[cfg(feature = "gpu")]
    quiet_thread(gpu::GPU_THREAD);
}

#[cfg(feature = "gpu")]
fn quiet_thread(name: &'static str) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(name) {
            hook(panic);
        }
    }));
}

/// Opens devices by their names, separated by commas; one that is named twice is opened twice.
///
/// # Errors
/// As [`open_device`], of the first that cannot be opened.
pub fn open_devices(names: &str, options: &DeviceOptions) -> Result<Vec<Arc<dyn Backend>>, Error> {
    device_kinds(names)?;
    names.split(',').map(|name| open_device(name, options)).collect()
}

/// Size of the buffer that peaks are measured with, where none is given: much larger than caches.
const PROBE: u64 = 1 << 30;

/// Measures what the device's memory and arithmetic can do, with the same workers a model would run on. `bytes` is the
/// size of the buffer that is read, or of both buffers of a copy; it should be much larger than the caches. Without it, 1 GiB
/// or what the device can copy. `None` for several devices.
///
/// # Errors
/// As [`open_device`]; no memory for the buffer, or one that is larger than the device can copy.
pub fn measure_peaks(
    name: &str,
    options: &DeviceOptions,
    bytes: Option<u64>,
) -> Result<Option<Peaks>, Error> {
    match device_kinds(name)?[..] {
        [DeviceKind::Cpu] => {
            let backend = open_cpu(options)?;
            let bytes = usize::try_from(bytes.unwrap_or(PROBE));
            let bytes = bytes.map_err(|_| Error::Device(format!("{name} has no memory of that size")))?;
            let limits = cpu::probe::Limits::measure(backend.pool(), backend.isa(), bytes);
            let limits = limits.map_err(|e| Error::Device(e.to_string()))?;
            Ok(Some(Peaks { memory_bytes: limits.read_bytes, int_ops: Some(limits.int_ops) }))
        }
        #[cfg(not(feature = "gpu"))]
        [DeviceKind::Gpu { .. }] => Err(no_gpus(name)),
        #[cfg(feature = "gpu")]
        [DeviceKind::Gpu { adapter, api }] => {
            let backend = open_gpu(name, adapter, api, options)?;
            let most = backend.copy_limit();
            let bytes = match bytes {
                None => PROBE.min(most),
                Some(bytes) if bytes <= most => bytes,
                Some(bytes) => {
                    return Err(Error::Device(format!(
                        "{name} cannot copy within {}: at most {} are possible",
                        ByteSize(bytes),
                        ByteSize(most)
                    )));
                }
            };
            let memory_bytes = backend.copy_bandwidth(bytes).map_err(|e| Error::Device(e.to_string()))?;
            Ok(Some(Peaks { memory_bytes, int_ops: None }))
        }
        _ => Ok(None),
    }
}

fn open_cpu(options: &DeviceOptions) -> Result<CpuBackend, Error> {
    let most = most_threads();
    if options.threads > most {
        let problem = format!(
            "is {}, at most {most} are possible, {THREADS_PER_PROCESSOR} for each processor: {} here, and as many threads \
             are best",
            options.threads,
            processors()
        );
        return Err(Error::Option { option: "threads", problem });
    }
    let isa = options.isa.as_deref().map(str::parse::<CpuIsa>).transpose();
    let isa = isa.map_err(|e| Error::Device(e.to_string()))?;
    CpuBackend::new(CpuOptions { threads: options.threads, isa }).map_err(|e| Error::Device(e.to_string()))
}

#[cfg(not(feature = "gpu"))]
fn no_gpus(name: &str) -> Error {
    Error::Device(format!(
        "{name} is a GPU, and this program was built without support for them: build it with the feature `gpu`, which is on \
         unless --no-default-features takes it away"
    ))
}

#[cfg(feature = "gpu")]
fn open_gpu(
    name: &str,
    adapter: usize,
    api: Option<GpuApi>,
    options: &DeviceOptions,
) -> Result<GpuBackend, Error> {
    let backends = api.map(|api| match api {
        GpuApi::Vulkan => Backends::VULKAN,
        GpuApi::Metal => Backends::METAL,
        GpuApi::Dx12 => Backends::DX12,
    });
    let options = GpuOptions {
        adapter: Some(adapter),
        backends,
        profile: options.gpu_limits,
        families: options.gpu_families,
    };
    block_on(GpuBackend::open(name, &options)).map_err(|e| Error::Device(e.to_string()))
}

fn unknown(name: &str) -> Error {
    let adapters: Vec<String>;
    #[cfg(feature = "gpu")]
    {
        let adapter = |(index, adapter)| format!("\n  gpu:{index} is {adapter}");
        adapters = gpu_adapters().iter().enumerate().map(adapter).collect();
    }
    #[cfg(not(feature = "gpu"))]
    {
        adapters = vec![];
    }
    let names = device_names().join(", ");
    Error::Device(format!("there is no device `{name}`; there are {names}{}", adapters.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        assert_eq!(device_kind("cpu").unwrap(), DeviceKind::Cpu);
        assert_eq!(device_kind("gpu").unwrap(), DeviceKind::Gpu { adapter: 0, api: None });
        assert_eq!(device_kind("gpu:12").unwrap(), DeviceKind::Gpu { adapter: 12, api: None });
        assert_eq!(device_kind("dx12").unwrap(), DeviceKind::Gpu { adapter: 0, api: Some(GpuApi::Dx12) });
        for name in ["", "gpu:", "gpu:x", "gpu:-1", "GPU", "abacus", "vulkan:1"] {
            let problem = device_kind(name).unwrap_err().to_string();
            assert!(problem.contains("metal") && problem.contains(&format!("`{name}`")), "{problem}");
        }
    }

    #[test]
    fn an_adapter_that_is_not_there_is_an_error_that_says_what_to_do() {
        let problem = open_device("gpu:99", &DeviceOptions::default()).err().unwrap().to_string();
        let advice = if cfg!(feature = "gpu") { "gristmill devices" } else { "the feature `gpu`" };
        assert!(problem.contains("99") && problem.contains(advice), "{problem}");
    }
}
