//! Copies: of device memory for the host to look at, and by a kernel on the device. How fast that one moves memory is the limit
//! that kernels are compared with, and what it takes to copy nothing is in every time that timestamps give.

use graph::backend::DeviceError;
use wgpu::BufferUsages as U;

use crate::device::Gpu;
use crate::select;

/// Bytes that a lane moves at a time.
const UNIT: u64 = 16;
/// Lanes of a workgroup.
const LANES: u64 = 256;

/// Two buffers of a size, and the kernel that copies one to the other.
pub(crate) struct Copies {
    pipeline: std::sync::Arc<crate::device::Pipeline>,
    /// Forth and back.
    groups: [wgpu::BindGroup; 2],
    workgroups: u32,
}

impl Copies {
    /// At least one unit is copied; `bytes` must fit a binding.
    pub(crate) fn new(gpu: &Gpu, bytes: u64) -> Result<Copies, DeviceError> {
        let pipeline = gpu.pipeline(&select::copy())?;
        let units = (bytes / UNIT).max(1);
        let workgroups =
            units.div_ceil(LANES).min(u64::from(gpu.limits.max_compute_workgroups_per_dimension));
        let buffer = |what| gpu.buffer(what, units * UNIT, U::STORAGE);
        let buffers = [buffer("what is copied")?, buffer("a copy")?];
        // What the prelude of every kernel names, and this one does not use.
        let arena = gpu.buffer("arena of copies", UNIT, U::STORAGE)?;
        let params = gpu.buffer("copy parameters", 64, U::UNIFORM | U::COPY_DST)?;
        let values = [units as u32, (workgroups * LANES) as u32, 0, 0];
        gpu.queue.write_buffer(&params, 0, bytemuck::cast_slice(&values));
        let group = |[from, to]: [usize; 2]| {
            gpu.bind(&pipeline, [&arena, &params, &params, &buffers[from], &buffers[to]])
        };
        let groups = [group([0, 1]), group([1, 0])];
        Ok(Copies { pipeline, groups, workgroups: workgroups as u32 })
    }

    /// Copies so many times, each what the one before has written; `after` follows each.
    pub(crate) fn encode(
        &self,
        pass: &mut wgpu::ComputePass,
        times: usize,
        mut after: impl FnMut(&mut wgpu::ComputePass, usize),
    ) {
        pass.set_pipeline(&self.pipeline.pipeline);
        for i in 0..times {
            pass.set_bind_group(0, &self.groups[i % 2], &[]);
            pass.dispatch_workgroups(self.workgroups, 1, 1);
            after(pass, i);
        }
    }
}

/// Bytes read and written a second when one half of `bytes` is copied to the other.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn bandwidth(gpu: &Gpu, bytes: u64) -> Result<f64, DeviceError> {
    /// Measurements; the best counts.
    const PASSES: usize = 5;
    /// A measurement lasts at least so long, so that submitting it does not count.
    const SECONDS: f64 = 0.05;
    let half = (bytes / 2).min(gpu.binding_limit());
    let copies = Copies::new(gpu, half)?;
    let seconds = |times: usize| -> Result<f64, DeviceError> {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        copies.encode(&mut encoder.begin_compute_pass(&Default::default()), times, |_, _| ());
        let commands = encoder.finish();
        let start = std::time::Instant::now();
        gpu.queue.submit([commands]);
        gpu.drain()?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first submission also clears the buffers.
    let mut times = 1;
    seconds(times)?;
    while seconds(times)? < SECONDS {
        times *= 2;
    }
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        best = best.min(seconds(times)?);
    }
    Ok((2 * half * times as u64) as f64 / best)
}

/// The words of a buffer, when all that was submitted has run.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn read(gpu: &Gpu, buffer: &wgpu::Buffer) -> Result<Vec<u32>, DeviceError> {
    let readback = gpu.buffer("a copy for the host", buffer.size(), U::MAP_READ | U::COPY_DST)?;
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &readback, 0, Some(buffer.size()));
    gpu.queue.submit([encoder.finish()]);
    readback.map_async(wgpu::MapMode::Read, .., |_| ());
    gpu.drain()?;
    let words = readback.slice(..).get_mapped_range().map_err(|e| DeviceError::Lost(e.to_string()))?;
    Ok(bytemuck::pod_collect_to_vec(&words))
}
