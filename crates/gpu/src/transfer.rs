//! What comes to the host, and entries of states on their way there and back, in the order of submission with the steps. Nothing
//! here waits.

use std::sync::Arc;

use graph::backend::{DeviceError, Reading};
use graph::{Fence, fence, validate};
use wgpu::BufferUsages as U;

use crate::device::{Awaited, Gpu};
use crate::state::GpuState;
use crate::verdict::Verdict;

impl Gpu {
    /// Has a flight end when the submission of this verdict has left the first `bytes` of a buffer to be read; `judge` says of
    /// them whether all went well.
    pub(crate) fn end_when_read(
        &self,
        flight: &Arc<Awaited>,
        readback: &wgpu::Buffer,
        bytes: u64,
        verdict: Verdict,
        judge: impl FnOnce(&[u32]) -> Result<(), DeviceError> + wgpu::WasmNotSend + 'static,
    ) {
        let (flight, buffer, faults) = (flight.clone(), readback.clone(), self.faults.clone());
        readback.map_async(wgpu::MapMode::Read, ..bytes, move |mapped| {
            verdict.then(faults.clone(), move || {
                let read = match mapped {
                    Ok(()) => read_back(&buffer, bytes),
                    Err(_) => Err(DeviceError::Lost(
                        faults.lost().unwrap_or_else(|| "the driver did not finish its work".into()),
                    )),
                };
                let read = faults.check().and(read);
                let result = read.as_ref().map_err(Clone::clone).and_then(|words| judge(words));
                flight.end(read, result);
            });
        });
    }
}

fn read_back(buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u32>, DeviceError> {
    let range = buffer.slice(..bytes).get_mapped_range().map_err(|e| DeviceError::Lost(e.to_string()))?;
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(&range);
    drop(range);
    buffer.unmap();
    Ok(words)
}

impl GpuState {
    /// Reads entries, one after another.
    pub(crate) fn read(&self, entries: &[u32]) -> Result<Reading, DeviceError> {
        let gpu = &self.gpu;
        gpu.check()?;
        let each = 4 * self.entry_words()?;
        validate::entries(&self.name, entries, self.entries(), each, None)?;
        let bytes = (entries.len() * each) as u64;
        if bytes == 0 {
            return Ok(Box::pin(std::future::ready(Ok(vec![]))));
        }
        let what = format!("a copy of state `{}`", self.name);
        let readback = gpu.buffer(&what, bytes, U::MAP_READ | U::COPY_DST)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for place in self.places(entries)? {
            let (from, bytes) = (4 * place.start as u64, 4 * place.len() as u64);
            encoder.copy_buffer_to_buffer(&self.buffer, from, &readback, at, Some(bytes));
            at += bytes;
        }
        let (submission, verdict) = gpu.submit([encoder.finish()]);
        let (signal, fence) = fence();
        let flight = gpu.faults.expect(signal);
        gpu.end_when_read(&flight, &readback, bytes, verdict, |_| Ok(()));
        gpu.wake_after(submission);
        Ok(Box::pin(async move {
            fence.await?;
            taken(&flight)
        }))
    }

    /// Writes entries.
    pub(crate) fn write(&self, entries: &[u32], bytes: &[u8]) -> Result<Fence, DeviceError> {
        let gpu = &self.gpu;
        gpu.check()?;
        let each = 4 * self.entry_words()?;
        validate::entries(&self.name, entries, self.entries(), each, Some(bytes.len()))?;
        let (signal, fence) = fence();
        if bytes.is_empty() {
            signal.set(Ok(()));
            return Ok(fence);
        }
        // A write of its own for each place would be a buffer of the driver's for each.
        let staging = gpu.buffer("entries of a state", bytes.len() as u64, U::COPY_SRC | U::COPY_DST)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for place in self.places(entries)? {
            let (to, len) = (4 * place.start as u64, 4 * place.len() as u64);
            encoder.copy_buffer_to_buffer(&staging, at, &self.buffer, to, Some(len));
            at += len;
        }
        gpu.queue.write_buffer(&staging, 0, bytes);
        let (submission, verdict) = gpu.submit([encoder.finish()]);
        let awaited = gpu.faults.expect(signal);
        let faults = gpu.faults.clone();
        gpu.queue.on_submitted_work_done(move || {
            verdict.then(faults.clone(), move || {
                let result = faults.check();
                awaited.end(result.clone().map(|()| vec![]), result);
            });
        });
        gpu.wake_after(submission);
        Ok(fence)
    }
}

/// What a copy that has ended gave.
fn taken(flight: &Awaited) -> Result<Vec<u8>, DeviceError> {
    match flight.read.get() {
        Some(Ok(words)) => Ok(bytemuck::cast_slice(words).to_vec()),
        Some(Err(error)) => Err(error.clone()),
        None => Err(DeviceError::Lost("the copy ended without a result".into())),
    }
}
