//! Copies of device memory: to the host, where something is looked at, and on the device, whose speed is the limit that kernels
//! are compared with.

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

/// The words of a buffer, when all that was submitted has run.
pub(crate) fn read(gpu: &Gpu, buffer: &wgpu::Buffer) -> Result<Vec<u32>, DeviceError> {
    use wgpu::BufferUsages as U;
    let readback = gpu.buffer("a copy for the host", buffer.size(), U::MAP_READ | U::COPY_DST)?;
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &readback, 0, Some(buffer.size()));
    gpu.queue.submit([encoder.finish()]);
    readback.map_async(wgpu::MapMode::Read, .., |_| ());
    gpu.drain();
    gpu.check()?;
    let words = readback.slice(..).get_mapped_range().map_err(|e| DeviceError::Lost(e.to_string()))?;
    Ok(bytemuck::pod_collect_to_vec(&words))
}
