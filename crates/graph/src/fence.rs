//! Completion of a submission, as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::backend::DeviceError;

struct Shared {
    result: Option<Result<(), DeviceError>>,
    waker: Option<Waker>,
}

/// Resolves when a submission has finished.
pub struct Fence(Arc<Mutex<Shared>>);

/// The backend's end of a [`Fence`]. Dropped without [`Signal::set`], it reports a lost submission.
pub struct Signal(Arc<Mutex<Shared>>);

/// A connected pair.
pub fn fence() -> (Signal, Fence) {
    let shared = Arc::new(Mutex::new(Shared { result: None, waker: None }));
    (Signal(shared.clone()), Fence(shared))
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fence {
    /// A fence that has already failed.
    pub fn failed(error: DeviceError) -> Fence {
        let (signal, fence) = fence();
        signal.set(Err(error));
        fence
    }
}

impl Signal {
    /// Finishes the submission.
    pub fn set(self, result: Result<(), DeviceError>) {
        self.put(result);
    }

    fn put(&self, result: Result<(), DeviceError>) {
        let mut shared = lock(&self.0);
        if shared.result.is_none() {
            shared.result = Some(result);
            let waker = shared.waker.take();
            drop(shared);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.put(Err(DeviceError::Lost("the submission was abandoned by the backend".into())));
    }
}

impl Future for Fence {
    type Output = Result<(), DeviceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut shared = lock(&self.0);
        match &shared.result {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                shared.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
