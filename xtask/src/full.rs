//! Everything that takes long, one after the other, with a table at the end.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::tree;

/// Seconds for each fuzz target.
const FUZZ: &str = "-max_total_time=600";

/// How a row of the table ended.
#[derive(PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped(&'static str),
}

struct Row {
    name: String,
    outcome: Outcome,
    seconds: u64,
}

/// Runs everything, also after a failure.
pub(crate) fn run() -> Result<()> {
    let mut rows = vec![];
    let mut cargo = |name: &str, args: &[&str]| rows.push(row(name, args));
    cargo("rules", &["xtask", "rules"]);
    cargo("format", &["fmt", "--all", "--check"]);
    cargo("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    cargo("tests of every crate", &["test", "--workspace", "--quiet"]);
    let suite =
        |package, test| ["test", "--release", "--package", package, "--test", test, "--", "--nocapture"];
    cargo("conformance, every instruction set", &suite("gristmill-cpu", "conformance"));
    cargo("goldens, both containers", &suite("gristmill-checks", "goldens"));
    cargo("determinism", &suite("gristmill-checks", "determinism"));
    cargo("scheduling", &suite("gristmill-engine", "scheduling"));
    cargo("mutation check", &["xtask", "mutate"]);
    cargo("crates of the browser build", &["xtask", "wasm"]);
    cargo("the browser build in a browser", &["xtask", "web"]);
    if ["GRISTMILL_MODELS", "GRISTMILL_ANSWERS"].iter().all(|name| std::env::var_os(name).is_some()) {
        cargo("real checkpoints", &suite("gristmill-checks", "real"));
        cargo("real vocabularies", &suite("gristmill-text", "real"));
    } else {
        rows.push(skipped("real checkpoints", "GRISTMILL_MODELS or GRISTMILL_ANSWERS is not set"));
    }
    if installed("deny") {
        rows.push(row("licences and advisories", &["deny", "check"]));
    } else {
        rows.push(skipped("licences and advisories", "cargo-deny is not installed"));
    }
    for target in fuzz_targets()? {
        let name = format!("fuzz {target}, 10 minutes");
        if installed("fuzz") {
            let folders = ["corpus", "seeds"].map(|folder| format!("fuzz/{folder}/{target}"));
            std::fs::create_dir_all(tree::root().join(&folders[0]))?;
            rows.push(row(&name, &["fuzz", "run", &target, &folders[0], &folders[1], "--", FUZZ]));
        } else {
            rows.push(skipped(&name, "cargo-fuzz is not installed"));
        }
    }

    println!("\n| check | result | seconds |\n|---|---|---|");
    for Row { name, outcome, seconds } in &rows {
        match outcome {
            Outcome::Passed => println!("| {name} | passed | {seconds} |"),
            Outcome::Failed => println!("| {name} | **failed** | {seconds} |"),
            Outcome::Skipped(why) => println!("| {name} | not run: {why} | |"),
        }
    }
    let failed: Vec<&str> =
        rows.iter().filter(|r| r.outcome == Outcome::Failed).map(|r| r.name.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    Ok(())
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    // The stable compiler takes the sanitizer flags of the fuzzer so.
    if args.first() == Some(&"fuzz") {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command.args(args).current_dir(tree::root());
    command
}

fn row(name: &str, args: &[&str]) -> Row {
    println!("\n== {name}: cargo {}", args.join(" "));
    let start = Instant::now();
    let passed = cargo(args).status().is_ok_and(|status| status.success());
    let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
    Row { name: name.to_owned(), outcome, seconds: start.elapsed().as_secs() }
}

fn skipped(name: &str, why: &'static str) -> Row {
    Row { name: name.to_owned(), outcome: Outcome::Skipped(why), seconds: 0 }
}

fn installed(subcommand: &str) -> bool {
    cargo(&[subcommand, "--version"]).output().is_ok_and(|out| out.status.success())
}

/// The names of the fuzz targets.
fn fuzz_targets() -> Result<Vec<String>> {
    let folder = std::path::Path::new("fuzz/fuzz_targets");
    let targets = tree::files()?.into_iter().filter(|f| f.starts_with(folder));
    Ok(targets.filter_map(|f| Some(f.file_stem()?.to_str()?.to_owned())).collect())
}
