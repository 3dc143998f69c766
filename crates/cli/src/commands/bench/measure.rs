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
    /// `n` tokens one by one after `depth` others, in so many sequences at once.
    Generate { n: usize, depth: usize, sequences: usize },
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Prompt { n, .. } => write!(f, "pp{n}")?,
            Test::Generate { n, .. } => write!(f, "tg{n}")?,
        }
        if self.depth() > 0 {
            write!(f, " @ d{}", self.depth())?;
        }
        if self.sequences() > 1 { write!(f, " x {}", self.sequences()) } else { Ok(()) }
    }
}

impl Test {
    /// Tokens that are timed, of all sequences.
    pub(super) fn tokens(&self) -> usize {
        self.length() * self.sequences()
    }

    /// Tokens of a sequence that are timed.
    fn length(&self) -> usize {
        match *self {
            Test::Prompt { n, .. } | Test::Generate { n, .. } => n,
        }
    }

    /// Sequences that are computed at once.
    pub(super) fn sequences(&self) -> usize {
        match *self {
            Test::Prompt { .. } => 1,
            Test::Generate { sequences, .. } => sequences,
        }
    }

    /// Tokens in the cache when the time starts.
    pub(super) fn depth(&self) -> usize {
        match *self {
            Test::Prompt { depth, .. } | Test::Generate { depth, .. } => depth,
        }
    }

    /// The context it needs of each sequence.
    pub(super) fn context(&self) -> usize {
        self.depth().max(1).saturating_add(self.length()).saturating_add(1)
    }

    /// Durations of `repetitions` runs, after one that does not count.
    pub(super) fn run(&self, engine: &mut Engine, repetitions: usize) -> Result<Vec<Duration>> {
        self.once(engine)?;
        (0..repetitions).map(|_| self.once(engine)).collect()
    }

    fn once(&self, engine: &mut Engine) -> Result<Duration> {
        match *self {
            Test::Prompt { n, depth: 0 } => Ok(generate(engine, n, 1, 1)?.total),
            // The time of both together less that of the depth alone: a request cannot be stopped in the middle of its
            // prompt without changing how it is cut into steps.
            Test::Prompt { n, depth } => {
                let before = generate(engine, depth, 1, 1)?.total;
                Ok(generate(engine, depth + n, 1, 1)?.total.saturating_sub(before))
            }
            Test::Generate { n, depth: 0, sequences } => Ok(generate(engine, 1, n, sequences)?.total),
            Test::Generate { n, depth, sequences } => {
                let run = generate(engine, depth, n + 1, sequences)?;
                Ok(run.total - run.first)
            }
        }
    }
}

/// Times of requests from their submission: when all had their first token, and when all had ended.
struct Run {
    first: Duration,
    total: Duration,
}

/// Computes a prompt of fixed, arbitrary tokens for each sequence and generates `n` more.
fn generate(engine: &mut Engine, prompt: usize, n: usize, sequences: usize) -> Result<Run> {
    let vocab = engine.info().vocab as u64;
    // Knuth's multiplicative hash: the same tokens in every run, spread over the vocabulary.
    let id = |i: u64| ((i + 1).wrapping_mul(2_654_435_761) % (1 << 32) % vocab) as u32;
    let start = Instant::now();
    let mut waiting = vec![];
    for sequence in 0..sequences as u64 {
        let prompt = (0..prompt as u64).map(|i| id(i + (sequence << 20))).collect();
        let sampling = SamplingOptions::default();
        let task = Task::Generate { max_tokens: Some(n), sampling, entropy: 0, stop: vec![] };
        waiting.push(engine.submit(Request { prompt, task, session: None })?);
    }
    let mut first = None;
    while let Some(events) = next_events(engine) {
        let now = start.elapsed();
        for event in events {
            match event {
                Event::Token { id, .. } => waiting.retain(|waits| *waits != id),
                Event::Failed { error, .. } => return Err(error.into()),
                _ => {}
            }
        }
        if waiting.is_empty() {
            first.get_or_insert(now);
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
        let generate = |sequences| Test::Generate { n: 128, depth: 4096, sequences };
        assert_eq!(generate(1).to_string(), "tg128 @ d4096");
        assert_eq!((generate(8).to_string(), generate(8).tokens()), ("tg128 @ d4096 x 8".to_owned(), 1024));
    }
}
