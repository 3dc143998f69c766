//! Everything that takes long, one after the other, with a table at the end.
//!
//! What needs files or programs that are not in the repository is named by environment variables, and said to be not run
//! without them: `GRISTMILL_MODELS` (a folder of GGUF files) and `GRISTMILL_ANSWERS` (JSON files of the same names, and
//! text.txt), `GRISTMILL_VOCABS` (`ggml-vocab-*.gguf` with their `.inp` and `.out`), `GRISTMILL_TEMPLATES` (a folder of chat
//! templates, `*.jinja`), `GRISTMILL_PYTHON` (an interpreter that has what tests/oracle/requirements.txt lists).

use std::ffi::OsStr;
use std::path::PathBuf;
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
    Skipped(String),
}

struct Row {
    name: String,
    outcome: Outcome,
    seconds: u64,
}

/// A test that is ignored otherwise, because it needs files that are not in the repository.
struct Wanting {
    name: &'static str,
    /// Say where the files lie.
    variables: &'static [&'static str],
    package: &'static str,
    /// In the package's test program `real`.
    test: &'static str,
}

const CHECKPOINTS: &[&str] = &["GRISTMILL_MODELS", "GRISTMILL_ANSWERS"];

const WANTING: [Wanting; 6] = [
    Wanting {
        name: "real checkpoints",
        variables: CHECKPOINTS,
        package: "gristmill-checks",
        test: "perplexity_and_clear_choices",
    },
    Wanting {
        name: "real checkpoints on a GPU",
        variables: CHECKPOINTS,
        package: "gristmill-checks",
        test: "perplexity_and_clear_choices_on_a_gpu",
    },
    Wanting {
        name: "texts in real vocabularies",
        variables: CHECKPOINTS,
        package: "gristmill-text",
        test: "answers",
    },
    Wanting {
        name: "every real vocabulary",
        variables: &["GRISTMILL_VOCABS"],
        package: "gristmill-text",
        test: "vocabularies",
    },
    Wanting {
        name: "lines of many languages, against transformers",
        variables: &["GRISTMILL_MODELS", "GRISTMILL_PYTHON"],
        package: "gristmill-text",
        test: "lines",
    },
    Wanting {
        name: "every real chat template, against Jinja2",
        variables: &["GRISTMILL_TEMPLATES", "GRISTMILL_PYTHON"],
        package: "gristmill-text",
        test: "templates",
    },
];

/// The suites of the first GPU of the machine: name, package, test program.
const GPU: [[&str; 3]; 2] = [
    ["conformance on a GPU", "gristmill-gpu", "conformance"],
    ["goldens and determinism on a GPU", "gristmill-checks", "gpu"],
];

/// What chromium brings: another Vulkan in software, with subgroups of 4 and no f16.
const SWIFTSHADER: &str = "/usr/lib/chromium/vk_swiftshader_icd.json";

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
    for [name, package, test] in GPU {
        cargo(name, &[&suite(package, test)[..], &["--include-ignored"]].concat());
    }
    cargo("mutation check", &["xtask", "mutate"]);
    cargo("crates of the browser build", &["xtask", "wasm"]);
    cargo("the browser build in a browser", &["xtask", "web"]);
    cargo("the CPU backend for aarch64", &["xtask", "aarch64", "check"]);
    cargo("the CPU backend on aarch64, emulated", &["xtask", "aarch64"]);
    rows.extend(GPU.map(|[name, package, test]| swiftshader(name, &suite(package, test))));
    for Wanting { name, variables, package, test } in WANTING {
        let unset: Vec<_> = variables.iter().copied().filter(|v| std::env::var_os(v).is_none()).collect();
        rows.push(if unset.is_empty() {
            let binary = ["test", "--release", "--package", package, "--test", "real"];
            row(name, &[&binary[..], &["--", "--exact", test, "--ignored", "--nocapture"]].concat())
        } else {
            skipped(name, format!("{} not set", unset.join(" and ")))
        });
    }
    rows.push(match std::env::var_os("GRISTMILL_PYTHON") {
        Some(python) => model_flags(&python),
        None => skipped(MODEL_FLAGS, "GRISTMILL_PYTHON not set"),
    });
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
    timed(name, || succeeds(&mut cargo(args)))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn timed(name: &str, passes: impl FnOnce() -> bool) -> Row {
    let start = Instant::now();
    let outcome = if passes() { Outcome::Passed } else { Outcome::Failed };
    Row { name: name.to_owned(), outcome, seconds: start.elapsed().as_secs() }
}

const MODEL_FLAGS: &str = "flags of every family, against transformers";

/// The release program against transformers, in an interpreter that has what tests/oracle/requirements.txt lists.
fn model_flags(python: &OsStr) -> Row {
    let script = "tests/oracle/model_flags.py";
    println!("\n== {MODEL_FLAGS}: {} {script}", python.display());
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| tree::root().join("target"), PathBuf::from);
    timed(MODEL_FLAGS, || {
        let mut program = target.join("release/gristmill");
        program.set_extension(std::env::consts::EXE_EXTENSION);
        let compare = || succeeds(Command::new(python).arg(script).arg(program).current_dir(tree::root()));
        succeeds(&mut cargo(&["build", "--release", "--package", "gristmill-cli"])) && compare()
    })
}

/// A suite on SwiftShader.
fn swiftshader(name: &str, args: &[&str]) -> Row {
    let name = format!("{name}, SwiftShader");
    if !std::path::Path::new(SWIFTSHADER).is_file() {
        return skipped(&name, format!("there is no {SWIFTSHADER}: chromium has it"));
    }
    println!("\n== {name}: cargo {}", args.join(" "));
    timed(&name, || {
        succeeds(cargo(args).env("VK_ICD_FILENAMES", SWIFTSHADER).env("VK_DRIVER_FILES", SWIFTSHADER))
    })
}

fn skipped(name: &str, why: impl Into<String>) -> Row {
    Row { name: name.to_owned(), outcome: Outcome::Skipped(why.into()), seconds: 0 }
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
