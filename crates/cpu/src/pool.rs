//! The process's thread pool.
//!
//! A [`Job`] is entered once by every worker of the pool. Inside it the workers walk the same list of kernels, meet at
//! [`Worker::barrier`] where one depends on another, and divide a kernel's work by [`Worker::claim`] (whoever is free takes the next
//! chunk) or [`Worker::share`] (fixed by index). Who computes a chunk may vary from run to run; what a chunk computes
//! must not, so no kernel may let a sum cross chunks.
//!
//! Waiting spins for a bounded time, then yields, then sleeps, so an idle pool costs nothing and a pool with more
//! threads than cores still makes progress. Jobs run one after another in the order of submission.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most workers of a pool.
const MAX_THREADS: usize = 1024;

/// Why the pool could not be made or a job did not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// More threads than any machine this is for has processors.
    #[error(
        "{threads} worker threads were asked for, at most {MAX_THREADS} are possible; one per processor is best"
    )]
    TooMany {
        /// How many were asked for.
        threads: usize,
    },
    /// The system refused a thread.
    #[error("the system refused worker thread {index} of {threads}: {reason}; ask for fewer threads")]
    Spawn {
        /// Which worker failed to start.
        index: usize,
        /// How many were asked for.
        threads: usize,
        /// The system's words.
        reason: String,
    },
    /// A worker panicked; the job was abandoned on every worker.
    #[error("worker {worker} panicked: {message}")]
    Panicked {
        /// The first worker that panicked.
        worker: usize,
        /// Its panic message.
        message: String,
    },
    /// A worker asked its own pool to run a job and wait, which could never end.
    #[error("a job of this thread pool tried to run another job on it and wait")]
    Nested,
}

/// How a [`Pool`] is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Worker threads; 0 means one per processor this process may use.
    pub threads: usize,
    /// Bind worker `i` to the `i`-th processor this process may use. Best effort, and only when there are exactly as many
    /// processors as workers: bound threads that share a processor would wait for each other, and with processors to
    /// spare the system may have better ones than the first (those of other processes, or siblings of one core).
    pub pin: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { threads: 0, pin: true }
    }
}

/// Work that every worker of a pool enters once.
pub trait Job: Send + Sync {
    /// The part of the job that belongs to `worker`. All workers must reach the same barriers in the same order.
    fn run(&self, worker: &Worker<'_>);
}

impl<F: Fn(&Worker<'_>) + Send + Sync> Job for F {
    fn run(&self, worker: &Worker<'_>) {
        self(worker);
    }
}

/// A set of worker threads that run [`Job`]s in the order of submission.
///
/// Dropping the pool finishes what was submitted, then ends the workers.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the workers.
    ///
    /// # Errors
    /// [`PoolError::Spawn`] when the system refuses a thread.
    pub fn new(options: PoolOptions) -> Result<Self, PoolError> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if options.threads == 0 { available } else { options.threads };
        if threads > MAX_THREADS {
            return Err(PoolError::TooMany { threads });
        }
        let mut processors =
            if options.pin { core_affinity::get_core_ids().unwrap_or_default() } else { Vec::new() };
        if processors.len() != threads {
            processors.clear();
        }
        let shared = Arc::new(Shared {
            threads,
            patience: Patience::new(threads, available),
            inbox: Gate::default(),
            submitted: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            queue: Mutex::default(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for index in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let processor = processors.get(index).copied();
            let spawned =
                std::thread::Builder::new().name(format!("gristmill-cpu-{index}")).spawn(move || {
                    if let Some(processor) = processor {
                        // Best effort: a refused binding costs speed, never results.
                        core_affinity::set_for_current(processor);
                    }
                    shared.work(index);
                });
            match spawned {
                Ok(handle) => pool.workers.push(handle),
                Err(error) => return Err(PoolError::Spawn { index, threads, reason: error.to_string() }),
            }
        }
        Ok(pool)
    }

    /// Number of workers.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Queues `job` and returns at once. The pool lets go of `job` before the completion is reported.
    pub fn submit(&self, job: Arc<dyn Job>) -> Completion {
        self.enqueue(Work::Owned(job))
    }

    /// Runs `job` on every worker and waits for it.
    ///
    /// # Errors
    /// [`PoolError::Panicked`] when a worker panicked, [`PoolError::Nested`] when called from one of this pool's workers.
    pub fn run(&self, job: &dyn Job) -> Result<(), PoolError> {
        if CURRENT.get() == self.shared.identity() {
            return Err(PoolError::Nested);
        }
        // SAFETY: only the lifetime changes. `wait` below returns after the last worker has left the job, does not
        // unwind, and nothing reads the pointer afterwards.
        let job: &'static dyn Job = unsafe { std::mem::transmute::<&dyn Job, &'static dyn Job>(job) };
        self.enqueue(Work::Borrowed(job)).wait()
    }

    fn enqueue(&self, work: Work) -> Completion {
        let done = Arc::new(Done::default());
        let section =
            Arc::new(Section::new(work, self.shared.threads, self.shared.patience, Arc::clone(&done)));
        lock(&self.shared.queue).push_back(section);
        self.shared.submitted.fetch_add(1, Ordering::SeqCst);
        self.shared.inbox.advance();
        Completion { done }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.inbox.advance();
        // A job may own the last handle to its pool; a thread cannot join itself.
        if CURRENT.get() != self.shared.identity() {
            for worker in self.workers.drain(..) {
                let _ = worker.join();
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.shared.threads).finish_non_exhaustive()
    }
}

/// One worker's view of the job it is in.
#[derive(Debug)]
pub struct Worker<'a> {
    index: usize,
    section: &'a Section,
    /// One more than the barriers it has passed.
    phase: Cell<u32>,
}

impl<'a> Worker<'a> {
    fn new(index: usize, section: &'a Section) -> Worker<'a> {
        Worker { index, section, phase: Cell::new(1) }
    }

    /// This worker's number, below [`Worker::count`].
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of workers in the job.
    #[must_use]
    pub fn count(&self) -> usize {
        self.section.threads
    }

    /// Waits until every worker of the job is here. What any of them wrote before is visible to all of them after, and
    /// the claim counters start again from zero.
    ///
    /// Does not return when a worker panicked: the others unwind out of the job.
    pub fn barrier(&self) {
        self.barrier_while(|| ());
    }

    /// As [`Worker::barrier`], and calls `idle` again and again while others are not here yet: a little work each time, that
    /// nobody misses if it is never done.
    pub fn barrier_while(&self, idle: impl FnMut()) {
        self.section.barrier(self.index, self.phase.get(), idle);
        self.phase.set(self.phase.get() + 1);
    }

    /// Takes the next chunk of at most `chunk` indices of `0..total`, or `None` when all are taken. Every worker passes
    /// the same `total` and `chunk`. It serves one loop between two barriers.
    ///
    /// # Panics
    /// When `chunk` is 0, or `total` more than 32 bits hold.
    #[must_use]
    pub fn claim(&self, total: usize, chunk: usize) -> Option<Range<usize>> {
        assert!(chunk > 0, "a claim takes at least one index");
        if self.section.failed.load(Ordering::Relaxed) {
            return None;
        }
        self.section.claimed.0.take(self.phase.get(), total, |left| left.min(chunk))
    }

    /// As [`Worker::claim`], for work that streams memory: each worker walks a part of its own from front to back, so that
    /// what it reads next is what it fetches ahead, and then takes chunks of those who are behind. It takes up to `most`
    /// chunks at once, and fewer towards the end of a part, so that nobody waits long for the last. It
    /// serves one loop between two barriers, beside one of [`Worker::claim`].
    ///
    /// # Panics
    /// When `chunk` or `most` is 0, or there are more chunks than 32 bits hold.
    #[must_use]
    pub fn claim_near(&self, total: usize, chunk: usize, most: usize) -> Option<Range<usize>> {
        assert!(chunk > 0 && most > 0, "a claim takes at least one index");
        if self.section.failed.load(Ordering::Relaxed) {
            return None;
        }
        let threads = self.section.threads;
        (0..threads).find_map(|behind| {
            let owner = (self.index + behind) % threads;
            let part = self.near(owner, total, chunk);
            let some = |left: usize| (left / 4).clamp(1, most);
            let taken = self.section.near[owner].0.take(self.phase.get(), part.len(), some)?;
            let cut = |unit: usize| ((part.start + unit) * chunk).min(total);
            Some(cut(taken.start)..cut(taken.end))
        })
    }

    /// The first index that [`Worker::claim_near`] gives this worker, unless others take its part.
    ///
    /// # Panics
    /// When `chunk` is 0.
    #[must_use]
    pub fn nearest(&self, total: usize, chunk: usize) -> usize {
        self.near(self.index, total, chunk).start * chunk
    }

    /// The chunks that are a worker's own.
    fn near(&self, owner: usize, total: usize, chunk: usize) -> Range<usize> {
        let (units, threads) = (total.div_ceil(chunk), self.section.threads);
        units * owner / threads..units * (owner + 1) / threads
    }

    /// This worker's fixed part of `0..total`, cut at multiples of `align`: contiguous, in order of index, possibly empty.
    ///
    /// # Panics
    /// When `align` is 0.
    #[must_use]
    pub fn share(&self, total: usize, align: usize) -> Range<usize> {
        let units = total.div_ceil(align);
        let cut = |i: usize| (units * i / self.section.threads * align).min(total);
        cut(self.index)..cut(self.index + 1)
    }
}

/// The end of a submitted job, to wait for. Dropping it does not cancel the job.
#[derive(Debug)]
pub struct Completion {
    done: Arc<Done>,
}

impl Completion {
    /// Blocks until the job has ended. Must not be called by a worker of the same pool.
    ///
    /// # Errors
    /// [`PoolError::Panicked`] when a worker panicked.
    pub fn wait(self) -> Result<(), PoolError> {
        let mut result = lock(&self.done.result);
        loop {
            match result.take() {
                Some(result) => return result,
                None => result = self.done.ended.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

thread_local! {
    /// Identity of the pool whose worker this thread is; 0 elsewhere.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what one thread writes off the cache lines that others poll.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

/// How many indices have been taken: in the low half; in the high one the phase that this is of, so that nobody has to set
/// it back.
#[derive(Debug, Default)]
struct Taken(AtomicU64);

impl Taken {
    /// The next of `len` in a phase, which is not 0: `some` of those that are left.
    fn take(&self, phase: u32, len: usize, some: impl Fn(usize) -> usize) -> Option<Range<usize>> {
        assert!(u32::try_from(len).is_ok(), "{len} are too many to claim");
        let next = |now: u64| {
            let start = if (now >> 32) as u32 == phase { now as u32 as usize } else { 0 };
            let left = len.checked_sub(start).filter(|&left| left > 0)?;
            Some(start..start + some(left))
        };
        let update = |now: u64| Some(u64::from(phase) << 32 | next(now)?.end as u64);
        next(self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()?)
    }
}

thread_local! {
    /// When a yield last gave this thread's processor to somebody else's work.
    static CROWDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A yield to another worker of a small model is shorter: a stranger has the processor for a whole time slice, which is
/// milliseconds. Who sleeps instead is woken in time. Beside two busy processes, four workers on two processors decoded
/// SmolLM2 with 2 to 8 tokens a second when they went on yielding, and 41 to 122 asleep.
const STRANGER: Duration = Duration::from_micros(1500);

/// For how long nobody yields after that. With nobody else about, yielding makes such workers twice as fast as sleeping does.
const MEMORY: Duration = Duration::from_millis(50);

/// How long a wait spins and how often it then yields before it sleeps.
#[derive(Debug, Clone, Copy)]
struct Patience {
    spin: Duration,
    yields: u32,
}

impl Patience {
    fn new(threads: usize, processors: usize) -> Self {
        // Gaps between kernels are microseconds and a wake-up costs tens of them. With more threads than processors a
        // spinning thread only keeps the one it waits for from running.
        let spin = if threads > processors { Duration::ZERO } else { Duration::from_micros(100) };
        Self { spin, yields: 32 }
    }
}

/// A counter that threads wait on.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Gate {
    value: AtomicU32,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    fn advance(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        // A waiter registers before it looks at the condition a last time, so either it sees the new state or it is
        // counted here; taking the lock makes sure that a counted one has reached its wait.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.lock));
            self.opened.notify_all();
        }
    }

    fn wait(&self, patience: Patience, mut ready: impl FnMut() -> bool) {
        if ready() {
            return;
        }
        if !patience.spin.is_zero() {
            let start = Instant::now();
            while start.elapsed() < patience.spin {
                for _ in 0..32 {
                    std::hint::spin_loop();
                    if ready() {
                        return;
                    }
                }
            }
        }
        for _ in 0..patience.yields {
            if CROWDED.get().is_some_and(|since| since.elapsed() < MEMORY) {
                break;
            }
            let start = Instant::now();
            std::thread::yield_now();
            if start.elapsed() > STRANGER {
                CROWDED.set(Some(Instant::now()));
            }
            if ready() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.lock);
        while !ready() {
            guard = self.opened.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Shared {
    threads: usize,
    patience: Patience,
    inbox: Gate,
    submitted: AtomicU64,
    retired: AtomicU64,
    closing: AtomicBool,
    /// What is running, in front, and what waits.
    queue: Mutex<VecDeque<Arc<Section>>>,
}

impl Shared {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn work(&self, index: usize) {
        CURRENT.set(self.identity());
        let mut next = 0;
        loop {
            // A job starts when every worker has left the one before: it may read what that one wrote.
            self.inbox.wait(self.patience, || {
                self.retired.load(Ordering::SeqCst) == next
                    && (self.submitted.load(Ordering::SeqCst) > next || self.closing.load(Ordering::SeqCst))
            });
            // Woken with nothing left: the pool is closing.
            let Some(section) = lock(&self.queue).front().cloned() else { return };
            section.enter(index);
            next += 1;
            // The last worker out retires the section.
            if section.running.0.fetch_sub(1, Ordering::AcqRel) == 1 {
                lock(&self.queue).pop_front();
                self.retired.store(next, Ordering::SeqCst);
                self.inbox.advance();
                section.finish();
            }
        }
    }
}

enum Work {
    Owned(Arc<dyn Job>),
    Borrowed(&'static dyn Job),
}

/// The payload with which workers leave a job that another worker's panic ended.
struct Abandoned;

/// One submission while it is queued or running.
struct Section {
    threads: usize,
    patience: Patience,
    work: Mutex<Option<Work>>,
    /// How often each worker has arrived: once in every round of every barrier.
    arrivals: Box<[Gate]>,
    failed: AtomicBool,
    failure: Mutex<Option<PoolError>>,
    claimed: Padded<Taken>,
    /// Of each worker's part.
    near: Box<[Padded<Taken>]>,
    running: Padded<AtomicU32>,
    done: Arc<Done>,
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Section").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Section {
    fn new(work: Work, threads: usize, patience: Patience, done: Arc<Done>) -> Section {
        Section {
            threads,
            patience,
            work: Mutex::new(Some(work)),
            arrivals: (0..threads).map(|_| Gate::default()).collect(),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            claimed: Padded::default(),
            near: (0..threads).map(|_| Padded::default()).collect(),
            running: Padded(AtomicU32::new(threads as u32)),
            done,
        }
    }

    fn enter(&self, index: usize) {
        let worker = Worker::new(index, self);
        let work = match &*lock(&self.work) {
            Some(Work::Owned(job)) => Work::Owned(Arc::clone(job)),
            Some(Work::Borrowed(job)) => Work::Borrowed(*job),
            None => return,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match &work {
            Work::Owned(job) => job.run(&worker),
            Work::Borrowed(job) => job.run(&worker),
        }));
        if let Err(payload) = outcome {
            self.fail(index, &*payload);
        }
        // A job's own drop may panic too.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(work))) {
            self.fail(index, &*payload);
        }
    }

    fn fail(&self, worker: usize, payload: &(dyn Any + Send)) {
        if !payload.is::<Abandoned>() {
            let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
                (Some(text), _) => (*text).to_owned(),
                (_, Some(text)) => text.clone(),
                _ => "(a panic without a message)".to_owned(),
            };
            lock(&self.failure).get_or_insert(PoolError::Panicked { worker, message });
        }
        self.failed.store(true, Ordering::SeqCst);
        self.arrivals.iter().for_each(Gate::wake);
    }

    /// The barrier of a phase, for one worker: in round r it arrives, and waits for the worker 2^r before it to do so, who
    /// has by then heard of 2^r workers (Hensgen, Finkel and Manber, 1988). No counter is shared by those who arrive.
    fn barrier(&self, index: usize, phase: u32, mut idle: impl FnMut()) {
        let rounds = self.threads.next_power_of_two().trailing_zeros();
        for round in 0..rounds {
            self.arrivals[index].advance();
            let before = &self.arrivals[(index + self.threads - (1 << round)) % self.threads];
            let arrived = (phase - 1).wrapping_mul(rounds).wrapping_add(round + 1);
            before.wait(self.patience, || {
                let ahead = before.value.load(Ordering::SeqCst).wrapping_sub(arrived) as i32;
                let ready = ahead >= 0 || self.failed.load(Ordering::SeqCst);
                if !ready {
                    idle();
                }
                ready
            });
            if self.failed.load(Ordering::SeqCst) {
                resume_unwind(Box::new(Abandoned));
            }
        }
    }

    fn finish(&self) {
        // Let go of the job first: its submitter may reuse what it owns as soon as it hears of the end.
        let work = lock(&self.work).take();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(work))) {
            self.fail(0, &*payload);
        }
        let result = match lock(&self.failure).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        };
        self.done.set(result);
    }
}

#[derive(Debug, Default)]
struct Done {
    result: Mutex<Option<Result<(), PoolError>>>,
    ended: Condvar,
}

impl Done {
    fn set(&self, result: Result<(), PoolError>) {
        *lock(&self.result) = Some(result);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
