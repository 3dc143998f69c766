//! A thread that waits for submissions, so that nobody who polls a fence has to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use graph::backend::DeviceError;

use crate::device::Faults;

/// The thread's name. It is where the graphics library panics when a device is lost.
pub const THREAD: &str = "gristmill gpu";

/// Drives a device's callbacks: wgpu calls them only from `poll`, except in browsers.
pub(crate) struct Poller {
    /// Taken when the thread is to end.
    waits: Option<Sender<Wait>>,
    thread: Option<JoinHandle<()>>,
}

enum Wait {
    /// For a submission.
    For(wgpu::SubmissionIndex),
    /// For all, and then tell.
    All(Sender<()>),
}

impl Poller {
    /// Starts the thread; it ends with the poller.
    pub(crate) fn new(device: &wgpu::Device, faults: Arc<Faults>) -> Result<Poller, DeviceError> {
        let (waits, waiting) = channel();
        let device = device.clone();
        let run = move || {
            for wait in waiting {
                let (index, done) = match wait {
                    Wait::For(submission) => (Some(submission), None),
                    Wait::All(done) => (None, Some(done)),
                };
                let wait = wgpu::PollType::Wait { submission_index: index, timeout: None };
                // wgpu panics when the driver says that the device is lost, and then calls nobody back.
                let poll = || {
                    assert!(!faults.broken.load(Ordering::Relaxed), "a test breaks the driver");
                    device.poll(wait)
                };
                if catch_unwind(AssertUnwindSafe(poll)).is_err() {
                    faults.lose("the driver lost it");
                }
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
        };
        let thread = std::thread::Builder::new().name(THREAD.into()).spawn(run);
        let thread = thread.map_err(|e| DeviceError::Lost(format!("no thread to wait for the GPU: {e}")))?;
        Ok(Poller { waits: Some(waits), thread: Some(thread) })
    }

    /// Has the thread wait for this submission and call back what is mapped after it.
    pub(crate) fn wait_for(&self, submission: wgpu::SubmissionIndex) {
        let _ = self.waits.as_ref().map(|waits| waits.send(Wait::For(submission)));
    }

    /// Waits for all submissions; then all is called back, or the device is noted as lost.
    pub(crate) fn drain(&self) {
        let (done, finished) = channel();
        if self.waits.as_ref().is_some_and(|waits| waits.send(Wait::All(done)).is_ok()) {
            let _ = finished.recv();
        }
    }
}

impl Drop for Poller {
    /// The thread has let go of the device when this returns: drivers do not bear it that a device is closed while the
    /// process exits.
    fn drop(&mut self) {
        self.waits = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
