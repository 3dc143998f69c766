//! Breaking off from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// Ends a generation from another thread, as from a signal handler: see [`crate::Generation::until`]. Clones are one and the
/// same.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    raised: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Interrupt {
    /// Not raised.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Ends what waits for it, and whatever is given it before [`Interrupt::clear`].
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
        let waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// As before it was raised.
    pub fn clear(&self) {
        self.0.raised.store(false, Ordering::SeqCst);
    }

    /// Whether it was raised; if not, `waker` is woken when it is.
    pub(crate) fn poll(&self, waker: &Waker) -> bool {
        // The waker goes first: what is raised in between is seen, or wakes.
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        self.is_raised()
    }
}
