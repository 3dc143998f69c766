use super::*;
use std::sync::mpsc;

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions { threads, pin: false }).unwrap()
}

#[test]
fn zero_threads_means_every_processor() {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(Pool::new(PoolOptions::default()).unwrap().threads(), available);
}

/// Workers are bound when they are as many as the processors of this process, each to its own, and never otherwise.
#[cfg(target_os = "linux")]
#[test]
fn as_many_workers_as_processors_are_bound() {
    let ids = || core_affinity::get_core_ids().unwrap();
    let all = ids();
    let allowed = |threads, pin| {
        let pool = Pool::new(PoolOptions { threads, pin }).unwrap();
        let seen = Mutex::new(vec![vec![]; threads]);
        // What a thread may use is what it is bound to.
        let job = |worker: &Worker<'_>| lock(&seen)[worker.index()] = ids();
        pool.run(&job).unwrap();
        seen.into_inner().unwrap()
    };
    let n = all.len();
    let own: Vec<_> = all.iter().map(|id| vec![*id]).collect();
    assert_eq!(allowed(n, true), own);
    assert_eq!(allowed(n, false), vec![all.clone(); n]);
    assert_eq!(allowed(n + 1, true), vec![all.clone(); n + 1]);
    for fewer in [1, n / 2, n - 1].into_iter().filter(|fewer| (1..n).contains(fewer)) {
        assert_eq!(allowed(fewer, true), vec![all.clone(); fewer]);
    }
}

#[test]
fn claims_cover_every_index_once_in_every_phase() {
    const PHASES: usize = 200;
    const TOTAL: usize = 37;
    for threads in [1, 2, 3, 5, 7, 8] {
        let seen: Vec<[AtomicU32; TOTAL]> =
            (0..PHASES).map(|_| std::array::from_fn(|_| AtomicU32::new(0))).collect();
        let torn = AtomicU32::new(0);
        let walk = |worker: &Worker<'_>| {
            for (phase, seen) in seen.iter().enumerate() {
                let next = || match phase / 2 % 2 {
                    0 => worker.claim(TOTAL, 1 + phase % 5),
                    _ => worker.claim_near(TOTAL, 1 + phase % 5, 1 + phase % 3),
                };
                while let Some(range) = next() {
                    for i in range {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    }
                }
                worker.barrier();
                // The phase is complete for everyone, not only for the worker that finished it.
                torn.fetch_add(seen.iter().any(|n| n.load(Ordering::Relaxed) != 1).into(), Ordering::Relaxed);
            }
        };
        pool(threads).run(&walk).unwrap();
        assert_eq!(torn.into_inner(), 0, "{threads} threads");
    }
}

/// A worker that is alone walks its part in order, then those of the others.
#[test]
fn a_worker_claims_its_own_part_first() {
    let order = Mutex::new(vec![]);
    let job = |worker: &Worker<'_>| {
        if worker.index() == 1 {
            while let Some(range) = worker.claim_near(20, 3, 2) {
                lock(&order).push(range);
            }
        }
    };
    pool(3).run(&job).unwrap();
    // Seven chunks: two of worker 0, two of worker 1, three of worker 2.
    assert_eq!(order.into_inner().unwrap(), [6..9, 9..12, 12..15, 15..18, 18..20, 0..3, 3..6]);
}

/// Large claims first, then smaller ones, down to a chunk: nobody waits long for whoever took the last.
#[test]
fn claims_become_smaller_towards_the_end_of_a_part() {
    let sizes = Mutex::new(vec![]);
    let job = |worker: &Worker<'_>| {
        while let Some(range) = worker.claim_near(100, 2, 6) {
            lock(&sizes).push(range.len());
        }
    };
    pool(1).run(&job).unwrap();
    // A quarter of the 50 chunks that are left each time, at most six.
    assert_eq!(sizes.into_inner().unwrap(), [12, 12, 12, 12, 12, 10, 6, 6, 4, 2, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn shares_tile_the_range_at_aligned_cuts() {
    for (threads, total, align) in [(1, 10, 4), (3, 10, 4), (8, 3, 1), (2, 0, 16), (3, 1000, 16)] {
        let parts = Mutex::new(vec![0..0; threads]);
        let job = |worker: &Worker<'_>| lock(&parts)[worker.index()] = worker.share(total, align);
        pool(threads).run(&job).unwrap();
        let parts = parts.into_inner().unwrap();
        let mut at = 0;
        for part in parts {
            assert_eq!(part.start, at);
            assert!(part.end == total || part.end % align == 0);
            at = part.end;
        }
        assert_eq!(at, total);
    }
}

#[test]
fn a_panic_reaches_the_submitter_while_others_wait_at_a_barrier() {
    for threads in [1, 2, 8] {
        let pool = pool(threads);
        for (culprit, pause) in [(0, 0), (threads - 1, 0), (threads - 1, 30)] {
            let job = |worker: &Worker<'_>| {
                worker.barrier();
                if worker.index() == culprit {
                    // Long enough for the others to be asleep.
                    std::thread::sleep(Duration::from_millis(pause));
                    panic!("broken {culprit}");
                }
                worker.barrier();
                unreachable!("no worker passes a barrier that another never reached");
            };
            let error = pool.run(&job).unwrap_err();
            assert_eq!(error, PoolError::Panicked { worker: culprit, message: format!("broken {culprit}") });
        }
        // The pool is whole afterwards.
        let ran = AtomicU32::new(0);
        let job = |worker: &Worker<'_>| {
            worker.barrier();
            ran.fetch_add(1, Ordering::Relaxed);
        };
        pool.run(&job).unwrap();
        assert_eq!(ran.into_inner() as usize, threads);
    }
}

#[test]
fn submissions_run_in_order_without_blocking() {
    let pool = pool(3);
    let (open, opened) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let log = Arc::new(Mutex::new(Vec::new()));
    let first = Arc::new({
        let log = Arc::clone(&log);
        move |worker: &Worker<'_>| {
            if worker.index() == 0 {
                lock(&opened).recv().unwrap();
                lock(&log).push(0);
            }
        }
    });
    let mut ends = vec![pool.submit(first)];
    for i in 1..50 {
        let log = Arc::clone(&log);
        ends.push(pool.submit(Arc::new(move |worker: &Worker<'_>| {
            if worker.index() == i % 3 {
                lock(&log).push(i);
            }
        })));
    }
    assert!(lock(&log).is_empty(), "the first job waits, and the others for it");
    open.send(()).unwrap();
    for end in ends {
        end.wait().unwrap();
    }
    assert_eq!(*lock(&log), (0..50).collect::<Vec<_>>());
}

#[test]
fn the_pool_lets_go_of_a_job_before_it_reports_the_end() {
    let pool = pool(4);
    for _ in 0..200 {
        let job = Arc::new(|_: &Worker<'_>| ());
        pool.submit(Arc::clone(&job) as Arc<dyn Job>).wait().unwrap();
        assert_eq!(Arc::strong_count(&job), 1);
    }
}

#[test]
fn a_worker_that_would_wait_for_its_own_pool_is_refused() {
    let pool = pool(2);
    let refused = Mutex::new(None);
    let job = |worker: &Worker<'_>| {
        if worker.index() == 0 {
            *lock(&refused) = pool.run(&|_: &Worker<'_>| ()).err();
        }
    };
    pool.run(&job).unwrap();
    assert_eq!(refused.into_inner().unwrap(), Some(PoolError::Nested));
}

#[test]
fn dropping_the_pool_finishes_what_was_submitted() {
    let ran = Arc::new(AtomicU32::new(0));
    let pool = pool(2);
    for _ in 0..20 {
        let ran = Arc::clone(&ran);
        pool.submit(Arc::new(move |_: &Worker<'_>| {
            ran.fetch_add(1, Ordering::Relaxed);
        }));
    }
    drop(pool);
    assert_eq!(ran.load(Ordering::Relaxed), 40);
}
