//! Running requests to their end.

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;

use engine::{Engine, Event};
use formats::Checkpoint;
use models::Model;

use crate::error::CheckError;

/// Opens the model in a GGUF file or a Hugging Face folder.
///
/// # Errors
/// What the container or the family refuses.
pub fn open_model(path: &Path) -> Result<Arc<Model>, CheckError> {
    Ok(Arc::new(Model::open(Arc::new(Checkpoint::open(path)?))?))
}

/// Polls an engine until it has nothing left to do.
///
/// # Errors
/// A request that fails.
pub(crate) fn settle(engine: &mut Engine) -> Result<(), CheckError> {
    while let Some(events) = pollster::block_on(poll_fn(|cx| engine.poll(cx))) {
        for event in events {
            if let Event::Failed { error, .. } = event {
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Polls an engine and hands every event to `done` until it has been true for one; the other events of that time are
/// handed over too.
///
/// # Errors
/// The first request that fails, and an engine that has nothing left to do before `done` was true.
pub fn drive(engine: &mut Engine, mut done: impl FnMut(&Event) -> bool) -> Result<(), CheckError> {
    loop {
        let Some(events) = pollster::block_on(poll_fn(|cx| engine.poll(cx))) else {
            return Err(CheckError::Unanswered);
        };
        let mut finished = false;
        for event in &events {
            if let Event::Failed { error, .. } = event {
                return Err(error.clone().into());
            }
            finished |= done(event);
        }
        if finished {
            return Ok(());
        }
    }
}
