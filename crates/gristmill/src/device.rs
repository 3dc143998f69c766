//! Devices by name.

use std::sync::Arc;

use cpu::isa::CpuIsa;
use cpu::{CpuBackend, CpuOptions};
use graph::backend::Backend;

use crate::error::Error;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// CPU worker threads; 0 is one per processor.
    pub threads: usize,
    /// CPU instruction set by name (`scalar`, `avx2`, `avx512`); `None` is the best there is.
    pub isa: Option<String>,
}

/// The names [`open_device`] knows.
pub fn device_names() -> &'static [&'static str] {
    &["cpu"]
}

/// Opens a device by the name given to `--device`.
///
/// # Errors
/// An unknown name, an instruction set this CPU lacks, threads the system refuses.
pub fn open_device(name: &str, options: &DeviceOptions) -> Result<Arc<dyn Backend>, Error> {
    match name {
        "cpu" => {
            let isa = options.isa.as_deref().map(str::parse::<CpuIsa>).transpose();
            let isa = isa.map_err(|e| Error::Device(e.to_string()))?;
            let backend = CpuBackend::new(CpuOptions { threads: options.threads, isa });
            Ok(Arc::new(backend.map_err(|e| Error::Device(e.to_string()))?))
        }
        other => Err(Error::Device(format!(
            "there is no device `{other}`; this build has: {}",
            device_names().join(", ")
        ))),
    }
}
