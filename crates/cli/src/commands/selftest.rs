//! `gristmill selftest`: proof that a device computes what it should.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use checks::determinism::{self, Options};
use checks::quantise::{FORMATS, quantised};
use checks::{CheckError, goldens, open_model};
use clap::Args;
use gristmill::parts::graph::backend::Backend;
use gristmill::{DeviceKind, KvType, Model, Precision, device_kinds, open_device};

use crate::args::{DeviceArgs, KvTypeArg, ThreadArgs};
use crate::error::Usage;
use crate::output::{note, results};

/// Check that a device computes what it should
///
/// Conformance runs every op with every type in many shapes and compares with the references. Given a folder, goldens are
/// whole models with independently computed answers, and determinism asks each of them the same in many circumstances
/// and compares bits.
#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// Run only what has this text in its name: `op/type/class` of a case, the folder of a golden
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Folder of goldens to try as well
    #[arg(long, value_name = "DIR")]
    goldens: Option<PathBuf>,
    /// Folder with the goldens as GGUF files, to try each from both containers, and determinism also of quantised variants
    #[arg(long, value_name = "DIR", requires = "goldens")]
    goldens_gguf: Option<PathBuf>,
    /// Determinism with the shortest prompts and without controls: for GPUs in software, which take minutes for a model
    #[arg(long, requires = "goldens")]
    short: bool,
    /// Determinism with KV caches of this type [default: f16 with `fast` kernels, f32 with `exact` ones]
    #[arg(long, value_name = "TYPE", requires = "goldens")]
    kv_type: Option<KvTypeArg>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// What came of a suite.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    /// The filter left nothing to run.
    Empty,
}

/// Runs the command: every suite, even after one has failed.
pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let [kind] = device_kinds(&args.device.device)?[..] else {
        return Err(Usage::error(
            "--device: a selftest is of one device; run it for each of several, whose answers are then those of one",
        ));
    };
    let open = |threads| open_device(&args.device.device, &args.device.options(threads));
    let backend = open(args.threads.threads.unwrap_or(0))?;
    let mut out = results();
    writeln!(out, "{}\n", backend.description())?;
    let mut verdicts = vec![];
    let mut suite = |name, run: &mut dyn FnMut() -> Result<Verdict>| -> Result<()> {
        let start = Instant::now();
        verdicts.push((name, run()?));
        note(format_args!("{name} took {:.1} s", start.elapsed().as_secs_f64()));
        Ok(())
    };
    suite("conformance", &mut || conformance(&mut out, &*backend, &args.filter))?;
    if let Some(dir) = &args.goldens {
        let folders = golden_folders(dir, &args.filter)?;
        let gguf = args.goldens_gguf.as_deref();
        let factor = match kind {
            DeviceKind::Cpu => 1.0,
            DeviceKind::Gpu { .. } => goldens::GPU_FACTOR,
        };
        suite("goldens", &mut || try_goldens(&mut out, &backend, &folders, gguf, factor))?;
        suite("determinism", &mut || try_determinism(&mut out, &open, &folders, args))?;
    }
    if verdicts.iter().all(|(_, v)| *v == Verdict::Empty) {
        bail!("nothing has `{}` in its name: nothing was run", args.filter);
    }
    verdicts.retain(|(_, v)| *v == Verdict::Failed);
    if !verdicts.is_empty() {
        let failed: Vec<&str> = verdicts.iter().map(|(suite, _)| *suite).collect();
        bail!("{} failed: {}", backend.description(), failed.join(", "));
    }
    Ok(())
}

/// Ops against their references.
fn conformance(out: &mut impl Write, backend: &dyn Backend, filter: &str) -> Result<Verdict> {
    let report = conformance::run(backend, |case| case.name().contains(filter));
    if report.rows.is_empty() {
        return Ok(Verdict::Empty);
    }
    writeln!(
        out,
        "conformance: cases passed of all, and the largest error as a share of its bound\n{report}"
    )?;
    // An op that the device refuses by name is listed, not wrong.
    Ok(if report.failures.is_empty() { Verdict::Passed } else { Verdict::Failed })
}

/// The folders that hold a golden and have the filter's text in their name.
fn golden_folders(dir: &Path, filter: &str) -> Result<Vec<PathBuf>> {
    let folders = std::fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    let folders = folders.flatten().map(|e| e.path()).filter(|p| p.join("expected.json").is_file());
    let mut folders: Vec<PathBuf> = folders.collect();
    if folders.is_empty() {
        bail!("{} holds no goldens: folders with an expected.json are looked for", dir.display());
    }
    folders.retain(|p| name(p).contains(filter));
    folders.sort();
    Ok(folders)
}

/// Whole models against their goldens.
fn try_goldens(
    out: &mut impl Write,
    backend: &Arc<dyn Backend>,
    folders: &[PathBuf],
    gguf: Option<&Path>,
    factor: f64,
) -> Result<Verdict> {
    writeln!(out, "goldens: the largest error as a share of its bound")?;
    let mut tally = Tally::default();
    for folder in folders {
        for checkpoint in [Some(folder.clone()), gguf_of(gguf, folder)].into_iter().flatten() {
            let result = goldens::check_case(backend.clone(), &checkpoint, folder, factor);
            let words = tally.enter(result.map(|report| (report.passed(), report.to_string())));
            writeln!(out, "  {:<28} {words}", name(&checkpoint))?;
        }
    }
    tally.verdict(out)
}

/// The same bits whatever else happens.
fn try_determinism(
    out: &mut impl Write,
    open: &dyn Fn(usize) -> Result<Arc<dyn Backend>, gristmill::Error>,
    folders: &[PathBuf],
    args: &SelftestArgs,
) -> Result<Verdict> {
    // Opened once here, so that a device that cannot be had is an error and not a panic.
    let devices = [1, 2, 3].map(open);
    let devices = devices.into_iter().collect::<Result<Vec<_>, _>>()?;
    let make = |threads: usize| devices[threads.clamp(1, devices.len()) - 1].clone();
    writeln!(out, "determinism: rows of logits compared bit by bit")?;
    let mut tally = Tally::default();
    let mut check = |name: String, model: Result<Arc<Model>, CheckError>, precision| -> Result<()> {
        let options = Options { kv_type: args.kv_type.map(KvType::from), ..Options::new(precision) };
        let options = if args.short { options.short() } else { options };
        let result = model.and_then(|model| determinism::run(&make, &model, &options));
        let words = tally.enter(result.map(|report| (report.passed(), report.to_string())));
        // Its properties are indented below it.
        writeln!(out, "  {name:<28} {}", words.trim_end().replace('\n', "\n  "))?;
        Ok(())
    };
    for (i, folder) in folders.iter().enumerate() {
        check(name(folder), open_model(folder), Precision::Exact)?;
        let file = gguf_of(args.goldens_gguf.as_deref(), folder);
        // The formats in turn.
        let format = FORMATS[i % FORMATS.len()];
        if let Some(file) = file {
            let model = open_model(&file).and_then(|model| quantised(model.checkpoint(), format));
            check(format!("{} as {format}", name(&file)), model, Precision::Fast)?;
        }
    }
    tally.verdict(out)
}

/// The GGUF file of a golden, if there is one.
fn gguf_of(gguf: Option<&Path>, folder: &Path) -> Option<PathBuf> {
    gguf.map(|gguf| gguf.join(format!("{}.gguf", name(folder)))).filter(|f| f.is_file())
}

/// Counts what came of the models of a suite.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    /// Counts one result; its words for the listing.
    fn enter(&mut self, result: Result<(bool, String), CheckError>) -> String {
        match result {
            Ok((true, words)) => {
                self.passed += 1;
                format!("ok {words}")
            }
            Ok((false, words)) => {
                self.failed += 1;
                format!("FAILED {words}")
            }
            Err(CheckError::Model(problem)) => {
                self.skipped += 1;
                format!("not tried: {problem}")
            }
            Err(error) => {
                self.failed += 1;
                format!("FAILED {error}")
            }
        }
    }

    fn verdict(&self, out: &mut impl Write) -> Result<Verdict> {
        let Tally { passed, failed, skipped } = self;
        writeln!(out, "  {passed} passed, {failed} failed, {skipped} not tried (no model for them)")?;
        // Models of which none could be tried prove nothing.
        Ok(match (passed, failed, skipped) {
            (0, 0, 0) => Verdict::Empty,
            (1.., 0, _) => Verdict::Passed,
            _ => Verdict::Failed,
        })
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
