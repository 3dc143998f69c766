//! The CPU backend on aarch64, in an emulator.

use std::process::Command;

use anyhow::{Context, Result};

use crate::toolchain::{Toolchain, install, output, run_to_end};
use crate::tree;

const TARGET: &str = "aarch64-unknown-linux-gnu";

const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// Debian's packages of the two, and of the C library that programs are linked with.
const PACKAGES: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];

/// What is run on each processor, and the words in the names of the tests: everything on one with all there is, and on
/// one without dot products of bytes what they are used for.
const RUNS: [(&str, &[&str], &[&str]); 3] =
    [("max", CPU, &[]), ("max", ENGINE, &[]), ("cortex-a57", CPU, &["isa::", "matmul::"])];

const CPU: &[&str] = &["--package", "gristmill-cpu", "--lib", "--tests"];
const ENGINE: &[&str] = &["--package", "gristmill-engine", "--test", "instruction_sets"];

/// Checks the crates and their tests, warnings being errors.
pub(crate) fn check() -> Result<()> {
    let toolchain = toolchain()?;
    for what in [CPU, ENGINE] {
        run_to_end(toolchain.cargo("clippy").arg("--quiet").args(what).args(["--", "-D", "warnings"]))?;
    }
    println!("the CPU backend and its tests pass for {TARGET}");
    Ok(())
}

/// Runs the tests.
pub(crate) fn run() -> Result<()> {
    if [LINKER, EMULATOR].iter().any(|program| output(Command::new(program).arg("--version")).is_err()) {
        install(PACKAGES).with_context(|| format!("{} are needed", PACKAGES.join(", ")))?;
    }
    let toolchain = toolchain()?;
    for (processor, what, names) in RUNS {
        println!("on {processor}: {}", [what, names].concat().join(" "));
        let runner = format!("{EMULATOR} -cpu {processor} -L /usr/aarch64-linux-gnu");
        let mut test = toolchain.cargo("test");
        test.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        test.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        run_to_end(test.arg("--quiet").args(what).arg("--").args(names))?;
    }
    Ok(())
}

fn toolchain() -> Result<Toolchain> {
    Toolchain::find(TARGET, tree::root().join("target/aarch64"))
}
