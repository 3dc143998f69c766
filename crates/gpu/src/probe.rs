//! What a device claims is tried before kernels rely on it. Whether kernels agree is tried later, see [`crate::agreement`].

use graph::backend::DeviceError;
use wgpu::BufferUsages as U;

use crate::device::Gpu;
use crate::select;

/// Lanes of the probe, each of which leaves a word.
const LANES: u64 = 1024;

/// Runs the probes and enters what they found into the device's capabilities.
pub(crate) fn run(mut gpu: Gpu) -> Result<Gpu, DeviceError> {
    let kernel = select::probe_halves();
    let pipeline = gpu.pipeline(&kernel)?;
    let arena = gpu.buffer("probe", 4 * LANES, U::STORAGE | U::COPY_SRC)?;
    let uniform = gpu.buffer("probe parameters", 64, U::UNIFORM)?;
    gpu.dispatch(&pipeline, [&arena, &uniform, &uniform], [(LANES / 64) as u32, 1, 1]);
    let words = crate::copy::read(&gpu, &arena)?;
    // A lane that found nothing wrong leaves 1; one that did not run leaves 0.
    gpu.capabilities.exact_halves = words.iter().all(|w| *w == 1);
    Ok(gpu)
}
