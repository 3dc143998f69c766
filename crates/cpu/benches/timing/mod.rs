//! Timing for benches that print their own tables.

use std::time::Instant;

const RUNS: usize = 15;

/// Seconds of the fastest of several runs, after one that does not count.
pub(crate) fn best(mut run: impl FnMut()) -> f64 {
    run();
    let times = (0..RUNS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}
