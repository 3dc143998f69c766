//! A device that was lost.

use std::sync::Arc;
use std::task::{Context, Poll};

use graph::backend::{Backend, DeviceError, Reopening};

use super::Engine;
use crate::cache::Cache;
use crate::error::EngineError;
use crate::plans::Plans;
use crate::request::Event;

/// What was done so far to have the device back.
#[derive(Default)]
pub(super) struct Recovery {
    /// Devices that are open again, from the first on.
    opened: Vec<Arc<dyn Backend>>,
    /// The next one.
    reopening: Option<Reopening>,
}

impl Recovery {
    fn poll(&mut self, devices: &[Arc<dyn Backend>], cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        while let Some(device) = devices.get(self.opened.len()) {
            let reopening = self.reopening.get_or_insert_with(|| device.reopen());
            let Poll::Ready(opened) = reopening.as_mut().poll(cx) else { return Poll::Pending };
            self.reopening = None;
            self.opened.push(opened?);
        }
        Poll::Ready(Ok(()))
    }
}

impl Engine {
    /// Nothing is submitted to a device that was lost.
    pub(super) fn note_lost(&mut self, error: &EngineError) {
        if matches!(error, EngineError::Device(DeviceError::Lost(_))) {
            self.lost.get_or_insert_default();
        }
    }

    /// Opens the device anew, of several all: their states are of no use without each other. Only if there is something to
    /// run. Where that fails, so do all requests; the next one makes it tried again.
    pub(super) fn recover(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(recovery) = &mut self.lost else { return Poll::Ready(()) };
        if self.scheduler.running.is_empty() && self.scheduler.waiting.is_empty() {
            return Poll::Ready(());
        }
        // The old devices' memory goes first: there may be no room for both.
        self.plans.release();
        let Poll::Ready(opened) = recovery.poll(&self.devices, cx) else { return Poll::Pending };
        let opened = opened.map(|()| std::mem::take(&mut recovery.opened));
        let plans = opened.map_err(EngineError::from).and_then(|devices| {
            self.devices = devices;
            Plans::build(&self.model, &self.devices, &self.recipe, &mut |_, _| {})
        });
        match plans.and_then(|plans| Ok((plans, Cache::new(&self.recipe.size)?))) {
            Ok((plans, cache)) => {
                (self.plans, self.cache) = (plans, cache);
                self.lost = None;
                self.scheduler.start_over();
                self.sessions.forget_all();
            }
            Err(error) => self.fail_all(&error),
        }
        Poll::Ready(())
    }

    fn fail_all(&mut self, error: &EngineError) {
        for s in self.scheduler.running.drain(..).chain(self.scheduler.waiting.drain(..)) {
            self.sessions.release(s.session);
            self.ready.push(Event::Failed { id: s.id, error: error.clone() });
        }
    }
}
