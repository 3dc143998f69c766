//! How fast a device copies its memory: the limit that kernels are compared with.

use std::time::Instant;

use graph::backend::DeviceError;

use crate::device::Gpu;

/// Measurements; the best counts.
const PASSES: usize = 5;
/// A measurement lasts at least so long, so that submitting it does not count.
const SECONDS: f64 = 0.05;

/// Bytes read and written a second when one half of `bytes` is copied to the other.
pub(crate) fn copy_bandwidth(gpu: &Gpu, bytes: u64) -> Result<f64, DeviceError> {
    use wgpu::BufferUsages as U;
    let half = (bytes / 2).clamp(4096, gpu.limits.max_buffer_size) & !255;
    let usage = U::COPY_SRC | U::COPY_DST;
    let buffers = [gpu.buffer("what is copied", half, usage)?, gpu.buffer("a copy", half, usage)?];
    let seconds = |copies: usize| -> Result<f64, DeviceError> {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        for i in 0..copies {
            encoder.copy_buffer_to_buffer(&buffers[i % 2], 0, &buffers[(i + 1) % 2], 0, Some(half));
        }
        let commands = encoder.finish();
        let start = Instant::now();
        gpu.queue.submit([commands]);
        let waited = gpu.device.poll(wgpu::PollType::wait_indefinitely());
        waited.map_err(|e| DeviceError::Lost(e.to_string()))?;
        gpu.check()?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first submission also clears the buffers.
    let mut copies = 1;
    seconds(copies)?;
    while seconds(copies)? < SECONDS {
        copies *= 2;
    }
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        best = best.min(seconds(copies)?);
    }
    Ok((2 * half * copies as u64) as f64 / best)
}
