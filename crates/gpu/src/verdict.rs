//! What the driver says to a submission. Natively a refusal is known when `submit` returns; browsers tell it later, in no
//! promised order with the mapping of a buffer, so a fence waits there for both: a step that the browser refused would
//! otherwise end well, with the outputs of the step before.

#[cfg(target_arch = "wasm32")]
use std::{future::Future, pin::Pin};

use crate::device::Gpu;

/// The driver's word on a submission.
pub(crate) struct Verdict {
    #[cfg(target_arch = "wasm32")]
    error: Pin<Box<dyn Future<Output = Option<wgpu::Error>> + Send>>,
}

impl Gpu {
    /// Submits, in this order.
    pub(crate) fn submit(
        &self,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
    ) -> (wgpu::SubmissionIndex, Verdict) {
        #[cfg(target_arch = "wasm32")]
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let submission = self.queue.submit(commands);
        #[cfg(target_arch = "wasm32")]
        return (submission, Verdict { error: Box::pin(scope.pop()) });
        #[cfg(not(target_arch = "wasm32"))]
        (submission, Verdict {})
    }
}

impl Verdict {
    /// Calls `then` when the verdict is known and any error noted.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn then(self, faults: std::sync::Arc<crate::device::Faults>, then: impl FnOnce() + 'static) {
        wasm_bindgen_futures::spawn_local(async move {
            if let Some(error) = self.error.await {
                faults.note(error);
            }
            then();
        });
    }

    /// Calls `then`: the verdict was noted when `submit` returned.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn then(self, _faults: std::sync::Arc<crate::device::Faults>, then: impl FnOnce()) {
        then();
    }
}
