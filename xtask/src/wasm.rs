//! The crates of the browser build, checked for wasm32.

use std::path::PathBuf;

use anyhow::Result;

use crate::toolchain::{Toolchain, run_to_end};
use crate::tree;

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// The crates that a browser runs; `web` has them all below it.
const CRATES: &[&str] = &["tensor", "graph", "formats", "text", "models", "engine", "gpu", "web"];

/// Everything that is made for the browser build.
pub(crate) fn folder() -> PathBuf {
    tree::root().join("target/wasm")
}

/// The compiler of the browser build.
///
/// # Errors
/// As [`Toolchain::find`].
pub(crate) fn toolchain() -> Result<Toolchain> {
    Toolchain::find(TARGET, folder().join("build"))
}

/// Checks the crates, warnings being errors.
pub(crate) fn run() -> Result<()> {
    let mut clippy = toolchain()?.cargo("clippy");
    clippy.arg("--quiet").args(["--package", "gristmill"]);
    for name in CRATES {
        clippy.args(["--package", &format!("gristmill-{name}")]);
    }
    clippy.args(["--", "-D", "warnings"]);
    run_to_end(&mut clippy)?;
    println!("{} crates pass for {TARGET}", CRATES.len() + 1);
    Ok(())
}
