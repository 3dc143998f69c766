//! Copies of entries of states, which run on the workers between the steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use graph::backend::{DeviceError, Reading, StateHandle};
use graph::{Fence, Signal, fence, validate};

use crate::pool::{Job, Worker};

use super::Shared;
use super::state::CpuState;

/// The state behind a handle.
pub(super) fn own(shared: &Arc<Shared>, state: &StateHandle) -> Result<Arc<CpuState>, DeviceError> {
    let own = state.clone().downcast::<CpuState>().ok().filter(|state| state.is_of(shared));
    own.ok_or_else(|| DeviceError::Binding {
        port: "state".into(),
        problem: "was made by another backend".into(),
    })
}

/// Reads entries.
pub(super) fn read(
    shared: &Arc<Shared>,
    state: Arc<CpuState>,
    entries: &[u32],
) -> Result<Reading, DeviceError> {
    validate::entries(&state.name, entries, state.entries(), 4 * state.entry_words(), None)?;
    let bytes = Arc::new(Mutex::new(vec![]));
    let done = submit(shared, state, entries, Copy::Read(bytes.clone()));
    Ok(Box::pin(async move {
        done.await?;
        Ok(std::mem::take(&mut *bytes.lock().unwrap_or_else(PoisonError::into_inner)))
    }))
}

/// Writes entries.
pub(super) fn write(
    shared: &Arc<Shared>,
    state: Arc<CpuState>,
    entries: &[u32],
    bytes: &[u8],
) -> Result<Fence, DeviceError> {
    let (count, each) = (state.entries(), 4 * state.entry_words());
    validate::entries(&state.name, entries, count, each, Some(bytes.len()))?;
    Ok(submit(shared, state, entries, Copy::Write(bytes.to_vec())))
}

fn submit(shared: &Arc<Shared>, state: Arc<CpuState>, entries: &[u32], copy: Copy) -> Fence {
    let (signal, fence) = fence();
    let (finished, done) = (AtomicBool::new(false), Mutex::new(Some(signal)));
    let job = CopyJob { state, entries: entries.to_vec(), copy, finished, done };
    drop(shared.pool.submit(Arc::new(job)));
    fence
}

enum Copy {
    /// Where the bytes go.
    Read(Arc<Mutex<Vec<u8>>>),
    /// Those of the entries.
    Write(Vec<u8>),
}

struct CopyJob {
    state: Arc<CpuState>,
    entries: Vec<u32>,
    copy: Copy,
    finished: AtomicBool,
    done: Mutex<Option<Signal>>,
}

impl Job for CopyJob {
    /// The first worker does it: memory is no faster for several.
    fn run(&self, worker: &Worker<'_>) {
        if worker.index() > 0 {
            return;
        }
        let (words, each) = (self.state.shared(), self.state.entry_words());
        let places = self.entries.iter().map(|entry| *entry as usize * each..(*entry as usize + 1) * each);
        match &self.copy {
            Copy::Read(into) => {
                let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                into.reserve_exact(4 * self.entries.len() * each);
                for place in places {
                    // SAFETY: jobs run one at a time, and no other worker of this one touches the state.
                    into.extend_from_slice(bytemuck::cast_slice(unsafe { words.part(place) }));
                }
            }
            Copy::Write(from) => {
                for (place, from) in places.zip(from.chunks_exact(4 * each.max(1))) {
                    // SAFETY: as above.
                    let place = unsafe { words.part_mut(place) };
                    bytemuck::cast_slice_mut(place).copy_from_slice(from);
                }
            }
        }
        self.finished.store(true, Ordering::Release);
    }
}

impl Drop for CopyJob {
    /// The pool lets go of a job after the last worker has left it, whether it ended or panicked.
    fn drop(&mut self) {
        if let Some(signal) = self.done.lock().unwrap_or_else(PoisonError::into_inner).take() {
            signal.set(match self.finished.load(Ordering::Acquire) {
                true => Ok(()),
                false => {
                    Err(DeviceError::Lost("a worker thread panicked; this is a fault of the program".into()))
                }
            });
        }
    }
}
