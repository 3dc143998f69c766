//! Results as a table, JSON or CSV, with llama-bench's columns and field names.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use gristmill::{ByteSize, Checkpoint, KvType, ModelInfo, Precision};
use serde_json::{Map, Value, json};

use crate::output::results;
use crate::resolve::precision_name;

use super::kernels::Kernels;
use super::measure::Test;
use super::work::Shares;

/// The model that is measured.
pub(super) struct Subject {
    file: String,
    kind: String,
    bytes: u64,
    parameters: u64,
}

/// One test's result.
pub(super) struct Row {
    pub(super) test: Test,
    pub(super) threads: usize,
    pub(super) chunk: usize,
    pub(super) repetitions: usize,
    pub(super) device: String,
    pub(super) precision: Precision,
    pub(super) kv_type: KvType,
    pub(super) samples: Vec<Duration>,
    /// Time to load the model, without its tokenizer.
    pub(super) ready: Duration,
    pub(super) peak_memory: Option<u64>,
    pub(super) shares: Option<Shares>,
    /// Times of its kernels, when they were asked for.
    pub(super) kernels: Option<Kernels>,
}

/// Mean and standard deviation (of the sample, 0 for a single one).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl Spread {
    fn of(samples: impl ExactSizeIterator<Item = f64> + Clone) -> Spread {
        let n = samples.len() as f64;
        let mean = samples.clone().sum::<f64>() / n;
        let squares: f64 = samples.map(|x| (x - mean).powi(2)).sum();
        Spread { mean, deviation: if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 } }
    }
}

impl Row {
    fn rates(&self) -> impl ExactSizeIterator<Item = f64> + Clone {
        let tokens = self.test.tokens() as f64;
        self.samples.iter().map(move |d| tokens / d.as_secs_f64())
    }

    /// Tokens per second.
    pub(super) fn rate(&self) -> Spread {
        Spread::of(self.rates())
    }
}

impl Subject {
    /// Describes a checkpoint.
    pub(super) fn new(path: &Path, info: &ModelInfo, checkpoint: &Checkpoint) -> Subject {
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        for t in checkpoint.tensors() {
            *types.entry(t.type_name).or_default() += t.bytes;
        }
        let main = types.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(name, _)| name);
        Subject {
            file: path.display().to_string(),
            kind: format!("{} {} {main}", info.architecture, short(info.parameters)),
            bytes: checkpoint.tensors().map(|t| t.bytes as u64).sum(),
            parameters: info.parameters,
        }
    }
}

/// `134.52 M`, `1.54 B`.
fn count(n: u64) -> String {
    match n {
        0..1_000_000_000 => format!("{:.2} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

/// `135M`, `1.5B`.
fn short(n: u64) -> String {
    match n {
        0..1_000_000_000 => format!("{:.0}M", n as f64 / 1e6),
        1_000_000_000..10_000_000_000 => format!("{:.1}B", n as f64 / 1e9),
        _ => format!("{:.0}B", n as f64 / 1e9),
    }
}

/// The table.
pub(super) fn markdown(subject: &Subject, rows: &[Row]) -> Result<()> {
    let head = ["model", "size", "params", "backend", "threads", "test", "t/s", "of the limit"];
    let mut cells: Vec<[String; 8]> = vec![];
    for row in rows {
        let rate = row.rate();
        cells.push([
            subject.kind.clone(),
            ByteSize(subject.bytes).to_string(),
            count(subject.parameters),
            format!("{}, {}", row.device, precision_name(row.precision)),
            row.threads.to_string(),
            row.test.to_string(),
            format!("{:.2} ± {:.2}", rate.mean, rate.deviation),
            row.shares.map_or_else(String::new, share_text),
        ]);
    }
    let width =
        |c: usize| cells.iter().map(|r| r[c].chars().count()).chain([head[c].len(), 3]).max().unwrap_or(3);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let left = |c: usize| matches!(c, 0 | 3);
    let mut out = results();
    let mut line = |row: &[&str]| -> io::Result<()> {
        for (c, (text, w)) in row.iter().zip(&widths).enumerate() {
            match left(c) {
                true => write!(out, "| {text:<w$} ")?,
                false => write!(out, "| {text:>w$} ")?,
            }
        }
        writeln!(out, "|")
    };
    line(&head)?;
    let rules: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(c, w)| if left(c) { "-".repeat(*w) } else { format!("{}:", "-".repeat(w - 1)) })
        .collect();
    line(&rules.iter().map(String::as_str).collect::<Vec<_>>())?;
    for row in &cells {
        line(&row.each_ref().map(String::as_str))?;
    }
    drop(out);
    for row in rows {
        if let Some(kernels) = &row.kernels {
            kernels.print(&row.test, row.shares.map(|s| s.peaks))?;
        }
    }
    Ok(())
}

fn share_text(shares: Shares) -> String {
    let peaks = shares.peaks;
    match (shares.read, shares.int, peaks.int_ops) {
        // Only of a CPU is the peak of its integer units known; of a GPU, what a copy moves.
        (Some(read), _, peak) => {
            let moved = if peak.is_some() { "read" } else { "copied" };
            format!("{:.0}% of {:.1} GB/s {moved}", 100.0 * read, peaks.memory_bytes / 1e9)
        }
        (_, Some(int), Some(peak)) => format!("{:.0}% of {:.0} GOP/s int8", 100.0 * int, peak / 1e9),
        _ => String::new(),
    }
}

/// The fields of a row, in order.
fn fields(subject: &Subject, row: &Row) -> Map<String, Value> {
    let (prompt, generated) = match row.test {
        Test::Prompt { n, .. } => (n, 0),
        Test::Generate { n, .. } => (0, n),
    };
    let kv = row.kv_type.name();
    let nanos = row.samples.iter().map(|d| d.as_nanos() as f64);
    let (time, rate) = (Spread::of(nanos), row.rate());
    let shares = row.shares;
    let all = json!({
        "model_filename": subject.file,
        "model_type": subject.kind,
        "model_size": subject.bytes,
        "model_n_params": subject.parameters,
        "build_version": env!("CARGO_PKG_VERSION"),
        "backends": row.device,
        "precision": precision_name(row.precision),
        "n_threads": row.threads,
        "n_ubatch": row.chunk,
        "type_k": kv,
        "type_v": kv,
        "n_prompt": prompt,
        "n_gen": generated,
        "n_depth": row.test.depth(),
        "n_sequences": row.test.sequences(),
        "test": row.test.to_string(),
        "repetitions": row.repetitions,
        "avg_ns": time.mean,
        "stddev_ns": time.deviation,
        "avg_ts": rate.mean,
        "stddev_ts": rate.deviation,
        "samples_ns": row.samples.iter().map(|d| d.as_nanos() as u64).collect::<Vec<_>>(),
        "samples_ts": row.rates().collect::<Vec<_>>(),
        "load_ns": row.ready.as_nanos() as u64,
        "peak_rss_bytes": row.peak_memory,
        "memory_bytes_per_second": shares.map(|s| s.peaks.memory_bytes),
        "int_ops_per_second": shares.and_then(|s| s.peaks.int_ops),
        "read_share": shares.and_then(|s| s.read),
        "int_share": shares.and_then(|s| s.int),
        "kernels": row.kernels.as_ref().map(Kernels::json),
    });
    match all {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// A JSON array.
pub(super) fn json(subject: &Subject, rows: &[Row]) -> Result<()> {
    let rows: Vec<_> = rows.iter().map(|r| fields(subject, r)).collect();
    results().json(&rows)
}

/// Comma-separated values; the samples are left out.
pub(super) fn csv(subject: &Subject, rows: &[Row]) -> Result<()> {
    let mut out = results();
    for (i, row) in rows.iter().enumerate() {
        let mut fields = fields(subject, row);
        fields.retain(|_, v| !v.is_array());
        fields.remove("kernels");
        if i == 0 {
            writeln!(out, "{}", fields.keys().cloned().collect::<Vec<_>>().join(","))?;
        }
        let cells: Vec<String> = fields.values().map(cell).collect();
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_that_of_a_sample() {
        assert_eq!(Spread::of([2.0, 4.0, 6.0].into_iter()), Spread { mean: 4.0, deviation: 2.0 });
        assert_eq!(Spread::of([3.0].into_iter()), Spread { mean: 3.0, deviation: 0.0 });
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!((count(134_515_008), short(134_515_008)), ("134.52 M".to_owned(), "135M".to_owned()));
        assert_eq!((count(1_543_714_304), short(1_543_714_304)), ("1.54 B".to_owned(), "1.5B".to_owned()));
    }

    #[test]
    fn csv_cells_are_quoted() {
        assert_eq!(cell(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(cell(&Value::Null), "");
        assert_eq!(cell(&json!(1.5)), "1.5");
    }
}
