//! Waiting for the engine on an ordinary thread.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use engine::{Engine, Event};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end, sleeping while it is pending.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(out) => return out,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Waits until something happened in an engine; `None` when it has nothing to do.
///
/// ```
/// use std::collections::HashMap;
///
/// use gristmill::{Event, Llm, LoadOptions, Request, SamplingOptions, Task, next_events};
///
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens-gguf/llama.gguf");
/// let mut llm = Llm::load(model, &LoadOptions::default())?;
/// let mut answers = HashMap::new();
/// for prompt in ["The mill", "Hello world"] {
///     let prompt = llm.encode(prompt)?;
///     let (sampling, stop) = (SamplingOptions::default(), llm.tokenizer().special().ends.clone());
///     let task = Task::Generate { max_tokens: Some(8), sampling, entropy: 0, stop };
///     answers.insert(llm.engine().submit(Request { prompt, task })?, vec![]);
/// }
/// // Both advance with every step, and neither answer depends on the other.
/// while let Some(events) = next_events(llm.engine()) {
///     for event in events {
///         match event {
///             Event::Token { id, token } => answers.entry(id).or_default().push(token.id),
///             Event::Failed { error, .. } => return Err(error.into()),
///             _ => {}
///         }
///     }
/// }
/// assert!(answers.values().all(|tokens| !tokens.is_empty()));
/// # Ok::<(), gristmill::Error>(())
/// ```
pub fn next_events(engine: &mut Engine) -> Option<Vec<Event>> {
    block_on(poll_fn(|cx| engine.poll(cx)))
}
