//! Entries of states on their way to the host and back, in the order of submission with the steps. Nothing here waits.

use graph::backend::{DeviceError, Reading};
use graph::{Fence, fence, validate};
use wgpu::BufferUsages as U;

use crate::device::Awaited;
use crate::plan::read_back;
use crate::state::GpuState;

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
        let (awaited, buffer, faults) = (flight.clone(), readback.clone(), gpu.faults.clone());
        readback.map_async(wgpu::MapMode::Read, ..bytes, move |mapped| {
            verdict.then(faults.clone(), move || {
                let read = match mapped {
                    Ok(()) => read_back(&buffer, bytes),
                    Err(_) => Err(DeviceError::Lost(
                        faults.lost().unwrap_or_else(|| "the driver did not finish the copy".into()),
                    )),
                };
                let read = faults.check().and(read);
                let result = read.as_ref().map(|_| ()).map_err(Clone::clone);
                awaited.end(read, result);
            });
        });
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
        let (signal, fence) = fence();
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
