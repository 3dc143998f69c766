//! Storage of weights: a few large buffers, so that matrices that are used together can be bound together.

use std::sync::{Arc, Mutex};

use graph::backend::DeviceError;

use crate::device::{Gpu, lock};

/// Where a part of a weight lies.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// The buffer, which is small enough to be bound whole.
    pub(crate) buffer: wgpu::Buffer,
    /// First word, a multiple of 64.
    pub(crate) at: u32,
}

/// Size of the first buffer; each further one is twice as large.
const FIRST: u64 = 32 << 20;
/// Largest buffer that is made before a weight asks for it.
const LARGEST: u64 = 1 << 30;
/// Words that regions are aligned to: the alignment of bindings.
const ALIGN: u64 = 64;

/// Hands out regions.
#[derive(Default)]
pub(crate) struct Slabs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<wgpu::Buffer>,
    used: u64,
    next: u64,
    staged: u64,
}

/// Bytes written before the queue is drained, which bounds the staging memory.
const STAGING: u64 = 64 << 20;

impl Slabs {
    /// A region of so many words.
    pub(crate) fn allocate(&self, gpu: &Gpu, what: &str, words: usize) -> Result<Region, DeviceError> {
        let bytes = (words as u64).next_multiple_of(ALIGN) * 4;
        let mut state = lock(&self.state);
        let state = &mut *state;
        let fits = |b: &&wgpu::Buffer| b.size() - state.used >= bytes;
        let buffer = match state.current.as_ref().filter(fits) {
            Some(buffer) => buffer.clone(),
            None => {
                let size = state.next.max(FIRST).max(bytes).min(gpu.binding_limit());
                let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
                let buffer = gpu.buffer(what, size.max(bytes), usage)?;
                state.next = (2 * size).min(LARGEST);
                state.used = 0;
                state.current.insert(buffer).clone()
            }
        };
        let at = (state.used / 4) as u32;
        state.used += bytes;
        Ok(Region { buffer, at })
    }

    /// Writes words of a region from `first` on.
    ///
    /// # Errors
    /// The device was lost, also for lack of memory.
    pub(crate) fn write(
        &self,
        gpu: &Gpu,
        region: &Region,
        first: usize,
        words: &[u32],
    ) -> Result<(), DeviceError> {
        let at = 4 * (u64::from(region.at) + first as u64);
        gpu.queue.write_buffer(&region.buffer, at, bytemuck::cast_slice(words));
        let mut state = lock(&self.state);
        state.staged += 4 * words.len() as u64;
        if state.staged >= STAGING {
            state.staged = 0;
            gpu.queue.submit([]);
            gpu.drain()?;
        }
        Ok(())
    }
}

/// Shared by a device's weights.
pub(crate) type SharedSlabs = Arc<Slabs>;
