//! `gristmill selftest`: proof that a device computes what it should.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use conformance::goldens::{self, GoldenError};
use gristmill::parts::graph::backend::Backend;
use gristmill::{DeviceOptions, open_device};

use crate::args::{DeviceArgs, ThreadArgs};

/// Arguments of `selftest`.
///
/// Conformance runs every op with every type in many shapes and compares with the references. Goldens are whole models
/// with independently computed answers.
#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// Run only what has this text in its name: `op/type/class` of a case, the folder of a golden
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Folder of goldens to try as well
    #[arg(long, value_name = "DIR")]
    goldens: Option<PathBuf>,
    /// Folder with the goldens as GGUF files, to try each from both containers
    #[arg(long, value_name = "DIR", requires = "goldens")]
    goldens_gguf: Option<PathBuf>,
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
    let options = DeviceOptions { threads: args.threads.threads.unwrap_or(0), isa: args.device.isa.clone() };
    let backend = open_device(&args.device.device, &options)?;
    let mut out = std::io::stdout().lock();
    let mut verdicts = vec![("conformance", conformance(&mut out, &*backend, &args.filter)?)];
    if let Some(dir) = &args.goldens {
        let verdict = try_goldens(&mut out, &*backend, dir, args.goldens_gguf.as_deref(), &args.filter)?;
        verdicts.push(("goldens", verdict));
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
    writeln!(out, "conformance\n{report}")?;
    Ok(if report.passed() { Verdict::Passed } else { Verdict::Failed })
}

/// Whole models against their goldens.
fn try_goldens(
    out: &mut impl Write,
    backend: &dyn Backend,
    dir: &Path,
    gguf: Option<&Path>,
    filter: &str,
) -> Result<Verdict> {
    let folders = std::fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    let folders = folders.flatten().map(|e| e.path()).filter(|p| p.join("expected.json").is_file());
    let mut folders: Vec<PathBuf> = folders.collect();
    if folders.is_empty() {
        bail!("{} holds no goldens: folders with an expected.json are looked for", dir.display());
    }
    folders.retain(|p| name(p).contains(filter));
    if folders.is_empty() {
        return Ok(Verdict::Empty);
    }
    folders.sort();
    writeln!(out, "goldens")?;
    let (mut passed, mut wrong, mut skipped) = (0, 0, 0);
    for folder in &folders {
        let file = gguf.map(|gguf| gguf.join(format!("{}.gguf", name(folder)))).filter(|f| f.is_file());
        for checkpoint in [Some(folder.clone()), file].into_iter().flatten() {
            let (count, words) = match goldens::check(backend, folder, &checkpoint) {
                Ok(report) if report.failures.is_empty() => {
                    let share = 100.0 * report.worst();
                    (&mut passed, format!("ok, {share:.0}% of the bound, {} greedy tokens", report.steps))
                }
                Ok(report) => (&mut wrong, format!("FAILED: {}", report.failures.join("; "))),
                Err(GoldenError::Model { problem, .. }) => (&mut skipped, format!("not tried: {problem}")),
                Err(error) => (&mut wrong, format!("FAILED: {error}")),
            };
            *count += 1;
            writeln!(out, "  {:<28} {words}", name(&checkpoint))?;
        }
    }
    writeln!(out, "  {passed} passed, {wrong} failed, {skipped} not tried (no model for them)")?;
    Ok(if wrong == 0 && passed > 0 { Verdict::Passed } else { Verdict::Failed })
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
