//! A thread that waits for submissions, so that nobody who polls a fence has to.

use std::sync::mpsc::{Sender, channel};

use graph::backend::DeviceError;

/// Drives a device's callbacks: wgpu calls them only from `poll`, except in browsers.
pub(crate) struct Poller {
    submitted: Sender<wgpu::SubmissionIndex>,
}

impl Poller {
    /// Starts the thread; it ends with the poller.
    pub(crate) fn new(device: &wgpu::Device) -> Result<Poller, DeviceError> {
        let (submitted, waiting) = channel();
        let device = device.clone();
        let run = move || {
            for submission in waiting {
                let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
                // A lost device calls every callback with an error; there is nothing else to do about it here.
                let _ = device.poll(wait);
            }
        };
        let thread = std::thread::Builder::new().name("gristmill gpu".into()).spawn(run);
        thread.map_err(|e| DeviceError::Lost(format!("no thread to wait for the GPU: {e}")))?;
        Ok(Poller { submitted })
    }

    /// Has the thread wait for this submission and call back what is mapped after it.
    pub(crate) fn wait_for(&self, submission: wgpu::SubmissionIndex) {
        let _ = self.submitted.send(submission);
    }
}
