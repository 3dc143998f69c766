//! What a device claims is tried before kernels rely on it.

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
    let readback = gpu.buffer("probe readback", 4 * LANES, U::MAP_READ | U::COPY_DST)?;
    let entries: Vec<_> = (0..)
        .zip([&arena, &uniform, &uniform])
        .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    let desc = wgpu::BindGroupDescriptor { label: None, layout: &pipeline.layout, entries: &entries };
    let group = gpu.device.create_bind_group(&desc);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline.pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups((LANES / 64) as u32, 1, 1);
    }
    encoder.copy_buffer_to_buffer(&arena, 0, &readback, 0, Some(4 * LANES));
    gpu.queue.submit([encoder.finish()]);
    readback.map_async(wgpu::MapMode::Read, .., |_| ());
    gpu.drain()?;
    let words = readback.slice(..).get_mapped_range().map_err(|e| DeviceError::Lost(e.to_string()))?;
    // A lane that found nothing wrong leaves 1; one that did not run leaves 0.
    gpu.capabilities.exact_halves = bytemuck::pod_collect_to_vec::<u8, u32>(&words).iter().all(|w| *w == 1);
    Ok(gpu)
}
