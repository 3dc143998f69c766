//! Where the time of a step goes, kernel by kernel.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use gristmill::{Engine, Peaks, StepProfile};
use serde_json::{Value, json};

use super::measure::Test;
use crate::output::results;

/// The steps of a test, with the time of each kernel.
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

/// What a kernel does in a second.
pub(super) struct Kernel {
    pub(super) name: String,
    /// Of the time of all kernels.
    pub(super) share: f64,
    pub(super) byte_rate: f64,
    pub(super) op_rate: f64,
}

impl Kernel {
    /// Operations for each byte.
    pub(super) fn intensity(&self) -> f64 {
        self.op_rate / self.byte_rate
    }
}

/// A kernel with operands of one kind, in all steps.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    op: &'static str,
    kernel: String,
    operands: String,
    calls: usize,
    nanos: u64,
    /// Of weights and of cached keys and values.
    bytes: u64,
    /// Multiply-adds.
    products: u64,
}

impl Line {
    fn per_second(&self, amount: u64) -> f64 {
        amount as f64 * 1e9 / self.nanos.max(1) as f64
    }

    /// Bytes a second.
    fn byte_rate(&self) -> f64 {
        self.per_second(self.bytes)
    }

    /// Operations a second: a multiply-add is two.
    fn op_rate(&self) -> f64 {
        2.0 * self.per_second(self.products)
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
                let new = Line { op, kernel, operands, calls: 0, nanos: 0, bytes: 0, products: 0 };
                let line = lines.entry(key).or_insert(new);
                line.calls += 1;
                line.nanos += time.nanos.saturating_sub(step.floor_nanos);
                line.bytes += time.bytes;
                line.products += time.products;
            }
        }
        all.lines = lines.into_values().collect();
        all.lines.sort_by_key(|line| std::cmp::Reverse(line.nanos));
        all
    }

    /// A table, with the peaks of the device beside the rates.
    pub(super) fn print(&self, test: &Test, peaks: Option<Peaks>) -> Result<()> {
        let mut out = results();
        let per_step = |n: f64| n / self.steps as f64;
        let device: u64 = self.lines.iter().map(|l| l.nanos).sum();
        writeln!(
            out,
            "\n{test}: {} steps; per step {:.1} kernels, {:.1} us in them, {:.1} us of the host to encode and submit",
            self.steps,
            per_step(self.dispatches as f64),
            per_step(device as f64) / 1e3,
            per_step(self.host_nanos as f64) / 1e3,
        )?;
        if self.floor_nanos > 0 {
            let floor = self.floor_nanos as f64 / 1e3;
            writeln!(
                out,
                "{floor:.2} us of a kernel that does nothing, timestamps included, are taken off every call"
            )?;
        }
        if let Some(Peaks { memory_bytes, int_ops, .. }) = peaks {
            match int_ops {
                Some(ops) => writeln!(
                    out,
                    "the limits, measured in this run: {:.1} GB/s read, {:.0} GOP/s int8",
                    memory_bytes / 1e9,
                    ops / 1e9
                )?,
                None => writeln!(
                    out,
                    "the limit, measured in this run: a copy moves {:.1} GB/s, read and written",
                    memory_bytes / 1e9
                )?,
            }
        }
        writeln!(
            out,
            "\n| kernel | op | operands | calls/step | us/step | share | us/call | MB/call | GB/s | of the limit | GOP/s | of the limit |"
        )?;
        writeln!(out, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        for line in &self.lines {
            let calls = line.calls as f64;
            let micros = line.nanos as f64 / 1e3;
            // The parameters behind the family's name are those of `plan`.
            let family = line.kernel.split(' ').next().unwrap_or_default();
            write!(
                out,
                "| {family} | {} | {} | {:.1} | {:.1} | {:.1}% | {:.2} |",
                line.op,
                line.operands,
                per_step(calls),
                per_step(micros),
                100.0 * line.nanos as f64 / device.max(1) as f64,
                micros / calls,
            )?;
            let share = |rate: f64, peak: Option<f64>| {
                peak.map_or_else(String::new, |peak| format!("{:.0}%", 100.0 * rate / peak))
            };
            match line.bytes {
                0 => write!(out, " | | |")?,
                bytes => {
                    let (rate, per_call) = (line.byte_rate(), bytes as f64 / 1e6 / calls);
                    let share = share(rate, peaks.map(|p| p.memory_bytes));
                    write!(out, " {per_call:.2} | {:.1} | {share} |", rate / 1e9)?;
                }
            }
            match line.products {
                0 => writeln!(out, " | |")?,
                _ => {
                    let rate = line.op_rate();
                    let share = share(rate, peaks.and_then(|p| p.int_ops));
                    writeln!(out, " {:.1} | {share} |", rate / 1e9)?;
                }
            }
        }
        Ok(())
    }

    /// The kernels of which both bytes and products are known, the longest first.
    pub(super) fn counted(&self) -> Vec<Kernel> {
        let all: u64 = self.lines.iter().map(|l| l.nanos).sum();
        let counted = self.lines.iter().filter(|l| l.bytes > 0 && l.products > 0 && l.nanos > 0);
        let kernel = |l: &Line| Kernel {
            name: format!("{} {}", l.op, l.operands),
            share: l.nanos as f64 / all as f64,
            byte_rate: l.byte_rate(),
            op_rate: l.op_rate(),
        };
        counted.map(kernel).collect()
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
                "bytes": l.bytes,
                "bytes_per_second": l.byte_rate(),
                "products": l.products,
                "ops_per_second": l.op_rate(),
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
        let time = |selection, nanos, bytes| KernelTime { selection, nanos, bytes, products: 2 * bytes };
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
        let seen: Vec<_> = all.lines.iter().map(|l| (&*l.kernel, l.calls, l.nanos, l.bytes)).collect();
        assert_eq!(seen, [("k1", 3, 54, 108), ("k0", 1, 10, 0)]);
        assert_eq!((all.lines[0].byte_rate(), all.lines[0].op_rate(), all.floor_nanos), (2e9, 8e9, 2));
    }
}
