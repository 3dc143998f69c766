//! `gristmill selftest`: proof that a device computes what it should.

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

/// Runs the command: every suite, even after one has failed.
pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let options = DeviceOptions { threads: args.threads.threads.unwrap_or(0), isa: args.device.isa.clone() };
    let backend = open_device(&args.device.device, &options)?;
    let mut failed = vec![];
    if !conformance(&*backend, &args.filter) {
        failed.push("conformance");
    }
    if let Some(dir) = &args.goldens
        && !try_goldens(&*backend, dir, args.goldens_gguf.as_deref(), &args.filter)?
    {
        failed.push("goldens");
    }
    if !failed.is_empty() {
        bail!("{} failed: {}", backend.description(), failed.join(", "));
    }
    Ok(())
}

/// Ops against their references; true when all is well. A filter that leaves no case is no failure.
fn conformance(backend: &dyn Backend, filter: &str) -> bool {
    let report = conformance::run(backend, |case| case.name().contains(filter));
    if report.rows.is_empty() {
        return true;
    }
    println!("conformance");
    print!("{report}");
    report.passed()
}

/// Whole models against their goldens; true when all is well.
fn try_goldens(backend: &dyn Backend, dir: &Path, gguf: Option<&Path>, filter: &str) -> Result<bool> {
    let folders = std::fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
    let folders = folders.flatten().map(|e| e.path()).filter(|p| p.join("expected.json").is_file());
    let mut folders: Vec<PathBuf> = folders.filter(|p| name(p).contains(filter)).collect();
    folders.sort();
    if folders.is_empty() && filter.is_empty() {
        bail!("{} holds no goldens: folders with an expected.json are looked for", dir.display());
    }
    println!("goldens");
    let (mut passed, mut wrong, mut skipped) = (0, 0, 0);
    for folder in &folders {
        let file = gguf.map(|gguf| gguf.join(format!("{}.gguf", name(folder)))).filter(|f| f.is_file());
        for checkpoint in [Some(folder.clone()), file].into_iter().flatten() {
            let title = name(&checkpoint);
            match goldens::check(backend, folder, &checkpoint) {
                Ok(report) if report.failures.is_empty() => {
                    passed += 1;
                    println!(
                        "  {title:<28} ok, {:.0}% of the bound, {} greedy tokens",
                        100.0 * report.worst(),
                        report.steps
                    );
                }
                Ok(report) => {
                    wrong += 1;
                    println!("  {title:<28} FAILED: {}", report.failures.join("; "));
                }
                Err(GoldenError::Model { problem, .. }) => {
                    skipped += 1;
                    println!("  {title:<28} not tried: {problem}");
                }
                Err(error) => {
                    wrong += 1;
                    println!("  {title:<28} FAILED: {error}");
                }
            }
        }
    }
    println!("  {passed} passed, {wrong} failed, {skipped} not tried (the model is not supported)");
    Ok(wrong == 0 && (passed > 0 || folders.is_empty()))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
