//! Logits of a prompt's own positions.

use std::ops::ControlFlow;

use engine::{Engine, Event, Request, Task};

use crate::block_on::next_events;
use crate::error::Error;

/// Logits of a prompt from position `from` on: `rows` gets the first position and rows of `info().vocab` logits, piece
/// by piece, until it breaks off. Events of other requests of the engine are dropped.
///
/// # Errors
/// The prompt is refused or the computation fails.
pub fn score(
    engine: &mut Engine,
    prompt: Vec<u32>,
    from: usize,
    mut rows: impl FnMut(usize, &[f32]) -> ControlFlow<()>,
) -> Result<(), Error> {
    let request = engine.submit(Request { prompt, task: Task::Score { from }, session: None })?;
    while let Some(events) = next_events(engine) {
        for event in events {
            let mut broken_off = false;
            match event {
                Event::Scores { id, first, logits } if id == request => {
                    broken_off = rows(first, &logits).is_break();
                }
                Event::Finished { id, .. } if id == request => return Ok(()),
                Event::Failed { id, error } if id == request => return Err(error.into()),
                _ => {}
            }
            if broken_off {
                engine.cancel(request);
                return Ok(());
            }
        }
    }
    Err(Error::Unanswered)
}
