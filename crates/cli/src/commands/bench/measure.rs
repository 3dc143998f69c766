//! Timing one test.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use gristmill::{Engine, Event, Request, SamplingOptions, Task, next_events};

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Test {
    /// A prompt of `n` tokens after `depth` others.
    Prompt { n: usize, depth: usize },
    /// `n` tokens one by one after `depth` others.
    Generate { n: usize, depth: usize },
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Prompt { n, .. } => write!(f, "pp{n}")?,
            Test::Generate { n, .. } => write!(f, "tg{n}")?,
        }
        if self.depth() > 0 { write!(f, " @ d{}", self.depth()) } else { Ok(()) }
    }
}

impl Test {
    /// Tokens that are timed.
    pub(super) fn tokens(&self) -> usize {
        match *self {
            Test::Prompt { n, .. } | Test::Generate { n, .. } => n,
        }
    }

    /// Tokens in the cache when the time starts.
    pub(super) fn depth(&self) -> usize {
        match *self {
            Test::Prompt { depth, .. } | Test::Generate { depth, .. } => depth,
        }
    }

    /// The context it needs.
    pub(super) fn context(&self) -> usize {
        self.depth().max(1).saturating_add(self.tokens()).saturating_add(1)
    }

    /// Durations of `repetitions` runs, after one that does not count.
    pub(super) fn run(&self, engine: &mut Engine, repetitions: usize) -> Result<Vec<Duration>> {
        self.once(engine)?;
        (0..repetitions).map(|_| self.once(engine)).collect()
    }

    fn once(&self, engine: &mut Engine) -> Result<Duration> {
        match *self {
            Test::Prompt { n, depth: 0 } => Ok(generate(engine, n, 1)?.total),
            // The time of both together less that of the depth alone: a request cannot be stopped in the middle of its
            // prompt without changing how it is cut into steps.
            Test::Prompt { n, depth } => {
                let before = generate(engine, depth, 1)?.total;
                Ok(generate(engine, depth + n, 1)?.total.saturating_sub(before))
            }
            Test::Generate { n, depth: 0 } => Ok(generate(engine, 1, n)?.total),
            Test::Generate { n, depth } => {
                let run = generate(engine, depth, n + 1)?;
                Ok(run.total - run.first)
            }
        }
    }
}

/// Times of a request from its submission.
struct Run {
    first: Duration,
    total: Duration,
}

/// Computes a prompt of fixed, arbitrary tokens and generates `n` more.
fn generate(engine: &mut Engine, prompt: usize, n: usize) -> Result<Run> {
    let vocab = engine.info().vocab as u64;
    // Knuth's multiplicative hash: the same tokens in every run, spread over the vocabulary.
    let ids = (0..prompt as u64).map(|i| ((i + 1).wrapping_mul(2_654_435_761) % (1 << 32) % vocab) as u32);
    let sampling = SamplingOptions::default();
    let task = Task::Generate { max_tokens: Some(n), sampling, entropy: 0, stop: vec![] };
    let start = Instant::now();
    let request = engine.submit(Request { prompt: ids.collect(), task, session: None })?;
    let mut first = None;
    while let Some(events) = next_events(engine) {
        let now = start.elapsed();
        for event in events {
            match event {
                Event::Token { id, .. } if id == request => _ = first.get_or_insert(now),
                Event::Failed { id, error } if id == request => return Err(error.into()),
                _ => {}
            }
        }
    }
    let total = start.elapsed();
    Ok(Run { first: first.unwrap_or(total), total })
}

/// The most memory the process has had resident, where the system tells (Linux).
pub(super) fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Starts the peak anew, where the system can (Linux); elsewhere it is that of all tests so far.
pub(super) fn reset_peak_memory() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::Test;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        assert_eq!(Test::Prompt { n: 512, depth: 0 }.to_string(), "pp512");
        assert_eq!(Test::Generate { n: 128, depth: 4096 }.to_string(), "tg128 @ d4096");
    }
}
