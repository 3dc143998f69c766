//! Timestamps around the dispatches of an instance.

use graph::backend::DeviceError;

use crate::copy::Copies;
use crate::device::Gpu;

/// Queries that a set may hold.
const SET: usize = wgpu::QUERY_SET_MAX_QUERIES as usize;

/// Timestamps before the first of so many dispatches and after each, and after some more that do next to nothing.
pub(crate) struct Timing {
    sets: Vec<wgpu::QuerySet>,
    count: usize,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
    copies: Copies,
}

/// Dispatches that the floor is the median of.
const FLOOR: usize = 9;

impl Timing {
    pub(crate) fn new(gpu: &Gpu, dispatches: usize) -> Result<Timing, DeviceError> {
        use wgpu::BufferUsages as U;
        let count = dispatches + FLOOR + 1;
        let set = |first: usize| {
            gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: SET.min(count - first) as u32,
            })
        };
        let bytes = 8 * count as u64;
        Ok(Timing {
            sets: (0..count).step_by(SET).map(set).collect(),
            copies: Copies::new(gpu, 0)?,
            count,
            resolved: gpu.buffer("timestamps", bytes, U::QUERY_RESOLVE | U::COPY_SRC)?,
            readback: gpu.buffer("timestamps read back", bytes, U::MAP_READ | U::COPY_DST)?,
        })
    }

    /// Times dispatches that do next to nothing, behind all others of the pass and so under the same conditions.
    pub(crate) fn floor(&self, pass: &mut wgpu::ComputePass) {
        let first = self.count - FLOOR;
        self.copies.encode(pass, FLOOR, |pass, i| self.stamp(pass, first + i));
    }

    /// Takes timestamp `i` when all before it in the pass is done.
    pub(crate) fn stamp(&self, pass: &mut wgpu::ComputePass, i: usize) {
        pass.write_timestamp(&self.sets[i / SET], (i % SET) as u32);
    }

    /// Makes the timestamps readable, behind the pass that takes them.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        for (i, set) in self.sets.iter().enumerate() {
            let first = i * SET;
            let count = SET.min(self.count - first) as u32;
            encoder.resolve_query_set(set, 0..count, &self.resolved, 8 * first as u64);
        }
        let bytes = 8 * self.count as u64;
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.readback, 0, Some(bytes));
    }

    /// Nanoseconds of each dispatch of the last submission, which must have finished, and of one that does next to nothing.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn read(&self, gpu: &Gpu) -> Option<(Vec<u64>, u64)> {
        let (mapped, waiting) = std::sync::mpsc::channel();
        self.readback.map_async(wgpu::MapMode::Read, .., move |result| {
            let _ = mapped.send(result);
        });
        gpu.drain().ok()?;
        waiting.try_recv().ok()?.ok()?;
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&self.readback.get_mapped_range(..).ok()?);
        self.readback.unmap();
        let period = f64::from(gpu.queue.get_timestamp_period());
        let nanos = |pair: &[u64]| (pair[1].saturating_sub(pair[0]) as f64 * period) as u64;
        let mut times: Vec<u64> = ticks.windows(2).map(nanos).collect();
        let mut floor = times.split_off(times.len() - FLOOR);
        floor.sort_unstable();
        Some((times, floor[FLOOR / 2]))
    }

    /// A page cannot wait.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn read(&self, _gpu: &Gpu) -> Option<(Vec<u64>, u64)> {
        None
    }
}
