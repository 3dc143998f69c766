//! Where the time of a step goes on the device, kernel by kernel.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use gristmill::{Engine, StepProfile};
use serde_json::{Value, json};

use super::measure::Test;
use crate::output::results;

/// The steps of a test, timed with timestamps around each kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernels {
    steps: usize,
    dispatches: usize,
    host_nanos: u64,
    /// What a kernel that does next to nothing takes between two timestamps; it is taken off the times of all.
    floor_nanos: u64,
    /// By total time, the longest first.
    lines: Vec<Line>,
}

/// A kernel with operands of one kind, in all steps.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    op: &'static str,
    kernel: String,
    operands: String,
    calls: usize,
    nanos: u64,
    weight_bytes: u64,
}

impl Line {
    /// Bytes of weights a second.
    fn rate(&self) -> f64 {
        self.weight_bytes as f64 * 1e9 / self.nanos.max(1) as f64
    }
}

impl Kernels {
    /// Runs a test twice on an engine that times its kernels and keeps the second run; `None` when its device cannot tell.
    pub(super) fn of(test: &Test, engine: &mut Engine, chunk: usize) -> Result<Option<Kernels>> {
        test.run(engine, 1)?;
        let all = engine.take_profiles();
        // A test's own steps are its last ones: those before them fill the cache.
        let own = match *test {
            Test::Prompt { n, .. } => n.div_ceil(chunk),
            Test::Generate { n, .. } => n,
        };
        let steps = &all[all.len().saturating_sub(own)..];
        let describe = |plan: usize, selection: usize| {
            let s = &engine.reports()[plan].selections[selection];
            (s.op, s.kernel.clone(), s.operands.clone())
        };
        Ok((!steps.is_empty()).then(|| Kernels::sum(steps, describe)))
    }

    fn sum(
        steps: &[(usize, StepProfile)],
        describe: impl Fn(usize, usize) -> (&'static str, String, String),
    ) -> Kernels {
        let mut all = Kernels { steps: steps.len(), ..Kernels::default() };
        let mut lines: BTreeMap<(&'static str, String, String), Line> = BTreeMap::new();
        for (plan, step) in steps {
            all.host_nanos += step.host_nanos;
            all.floor_nanos = step.floor_nanos;
            all.dispatches += step.kernels.len();
            for time in &step.kernels {
                let key = describe(*plan, time.selection);
                let (op, kernel, operands) = key.clone();
                let new = Line { op, kernel, operands, calls: 0, nanos: 0, weight_bytes: 0 };
                let line = lines.entry(key).or_insert(new);
                line.calls += 1;
                line.nanos += time.nanos.saturating_sub(step.floor_nanos);
                line.weight_bytes += time.weight_bytes;
            }
        }
        all.lines = lines.into_values().collect();
        all.lines.sort_by_key(|line| std::cmp::Reverse(line.nanos));
        all
    }

    /// A table; `copy` is bytes a second that a copy on the device reads and writes.
    pub(super) fn print(&self, test: &Test, copy: Option<f64>) -> Result<()> {
        let mut out = results();
        let per_step = |n: f64| n / self.steps as f64;
        let device: u64 = self.lines.iter().map(|l| l.nanos).sum();
        writeln!(
            out,
            "\n{test}: {} steps; per step {:.1} dispatches, {:.1} us in kernels, {:.1} us of the host to encode and submit",
            self.steps,
            per_step(self.dispatches as f64),
            per_step(device as f64) / 1e3,
            per_step(self.host_nanos as f64) / 1e3,
        )?;
        let floor = self.floor_nanos as f64 / 1e3;
        writeln!(
            out,
            "{floor:.2} us of a dispatch that does nothing, timestamps included, are taken off every call"
        )?;
        if let Some(copy) = copy {
            writeln!(out, "a copy on the device moves {:.1} GB/s, read and written", copy / 1e9)?;
        }
        writeln!(
            out,
            "\n| kernel | op | operands | calls/step | us/step | us/call | MB/call | GB/s | of the copy |"
        )?;
        writeln!(out, "|---|---|---|---:|---:|---:|---:|---:|---:|")?;
        for line in &self.lines {
            let calls = line.calls as f64;
            let micros = line.nanos as f64 / 1e3;
            // The parameters behind the family's name are those of `plan`.
            let family = line.kernel.split(' ').next().unwrap_or_default();
            write!(
                out,
                "| {family} | {} | {} | {:.1} | {:.1} | {:.2} |",
                line.op,
                line.operands,
                per_step(calls),
                per_step(micros),
                micros / calls,
            )?;
            match line.weight_bytes {
                0 => writeln!(out, " | | |")?,
                bytes => {
                    let share = copy.map_or_else(String::new, |c| format!("{:.0}%", 100.0 * line.rate() / c));
                    let rate = line.rate() / 1e9;
                    writeln!(out, " {:.2} | {rate:.1} | {share} |", bytes as f64 / 1e6 / calls)?;
                }
            }
        }
        Ok(())
    }

    /// The same numbers, summed over all steps.
    pub(super) fn json(&self) -> Value {
        let line = |l: &Line| {
            json!({
                "kernel": l.kernel,
                "op": l.op,
                "operands": l.operands,
                "calls": l.calls,
                "ns": l.nanos,
                "weight_bytes": l.weight_bytes,
                "weight_bytes_per_second": l.rate(),
            })
        };
        json!({
            "steps": self.steps,
            "dispatches": self.dispatches,
            "host_ns": self.host_nanos,
            "floor_ns": self.floor_nanos,
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill::parts::graph::backend::KernelTime;

    #[test]
    fn kernels_are_summed_over_steps_and_plans_and_sorted_by_time() {
        let time = |selection, nanos, weight_bytes| KernelTime { selection, nanos, weight_bytes };
        let steps = [
            (
                0,
                StepProfile {
                    kernels: vec![time(0, 12, 0), time(1, 32, 60), time(1, 22, 40)],
                    floor_nanos: 2,
                    host_nanos: 5,
                },
            ),
            (1, StepProfile { kernels: vec![time(0, 6, 8)], floor_nanos: 2, host_nanos: 7 }),
        ];
        let describe = |plan: usize, selection: usize| {
            ("op", format!("k{}", (plan + selection) % 2), format!("o{}", (plan + selection) % 2))
        };
        let all = Kernels::sum(&steps, describe);
        assert_eq!((all.steps, all.dispatches, all.host_nanos), (2, 4, 12));
        let seen: Vec<_> = all.lines.iter().map(|l| (&*l.kernel, l.calls, l.nanos, l.weight_bytes)).collect();
        assert_eq!(seen, [("k1", 3, 54, 108), ("k0", 1, 10, 0)]);
        assert_eq!((all.lines[0].rate(), all.floor_nanos), (2e9, 2));
    }
}
