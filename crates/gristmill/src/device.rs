//! Devices by name.

use std::sync::Arc;

use cpu::isa::CpuIsa;
pub use cpu::probe::Limits;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::Backend;

use crate::error::Error;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// CPU worker threads, at most [`most_threads`]; 0 is one per processor.
    pub threads: usize,
    /// CPU instruction set by name (`scalar`, `avx2`, `avx512`); `None` is the best there is.
    pub isa: Option<String>,
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

/// The names [`open_device`] knows.
pub fn device_names() -> &'static [&'static str] {
    &["cpu"]
}

/// Opens a device by the name given to `--device`.
///
/// # Errors
/// An unknown name, an instruction set this CPU lacks, too many threads or ones that the system refuses.
pub fn open_device(name: &str, options: &DeviceOptions) -> Result<Arc<dyn Backend>, Error> {
    match name {
        "cpu" => Ok(Arc::new(open_cpu(options)?)),
        other => Err(unknown(other)),
    }
}

/// Measures what the device's memory and arithmetic can do, with the same workers a model would run on. `bytes` is the
/// size of the buffer that is read; it should be much larger than the caches.
///
/// # Errors
/// As [`open_device`], and memory for the buffer.
pub fn device_limits(name: &str, options: &DeviceOptions, bytes: usize) -> Result<Limits, Error> {
    match name {
        "cpu" => {
            let backend = open_cpu(options)?;
            Limits::measure(backend.pool(), backend.isa(), bytes).map_err(|e| Error::Device(e.to_string()))
        }
        other => Err(unknown(other)),
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

fn unknown(name: &str) -> Error {
    Error::Device(format!("there is no device `{name}`; this build has: {}", device_names().join(", ")))
}
