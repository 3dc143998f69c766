//! The mutation check: every way to break the code in [`crate::mutations`] makes a suite fail.
//!
//! The repository's files are copied to `target/mutants` and changed there, one mutation at a time. The copy has packages
//! of its own in the eyes of cargo, so it can share the target folder, and with it everything that is not ours.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::mutations::{MUTATIONS, Mutation};
use crate::tree;

/// Package and test of the suites, those that notice most first.
const SUITES: &[(&str, &str)] = &[
    ("gristmill-checks", "goldens"),
    ("gristmill-cpu", "conformance"),
    ("gristmill-engine", "scheduling"),
    ("gristmill-checks", "determinism"),
];

/// Longer than any suite takes; what hangs is caught.
const LIMIT: Duration = Duration::from_secs(1200);

/// What came of a mutation.
enum Verdict {
    /// The suite that failed first.
    Caught(String),
    Missed,
}

/// Runs the check for the mutations with `filter` in their names.
pub(crate) fn run(filter: &str) -> Result<()> {
    check_places()?;
    let copy = Copy::make()?;
    let start = Instant::now();
    if let Verdict::Caught(suite) = copy.verdict().context("the unchanged code")? {
        bail!("{suite} fails on the unchanged code: mutations would prove nothing");
    }
    println!("unchanged: every suite passes ({} s)", start.elapsed().as_secs());
    let mut missed = vec![];
    for mutation in MUTATIONS.iter().filter(|m| m.name.contains(filter)) {
        let start = Instant::now();
        let verdict = copy.broken(mutation).with_context(|| mutation.name.to_owned())?;
        let seconds = start.elapsed().as_secs();
        match verdict {
            Verdict::Caught(suite) => println!("caught  {:52} by {suite} ({seconds} s)", mutation.name),
            Verdict::Missed => {
                println!("MISSED  {:52} ({seconds} s)", mutation.name);
                missed.push(mutation.name);
            }
        }
    }
    ensure!(missed.is_empty(), "no suite notices: {}", missed.join("; "));
    Ok(())
}

/// Every mutation finds its place, exactly once.
///
/// # Errors
/// The mutations that do not.
pub(crate) fn check_places() -> Result<()> {
    let mut wrong = vec![];
    for m in MUTATIONS {
        let found = tree::read(Path::new(m.file))?.matches(m.old).count();
        if found != 1 {
            wrong.push(format!("`{}`: {} holds its text {found} times, once expected", m.name, m.file));
        }
    }
    ensure!(
        wrong.is_empty(),
        "mutations without a place (xtask/src/mutations.rs):\n  {}",
        wrong.join("\n  ")
    );
    Ok(())
}

/// A copy of the repository.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Brings the copy up to date. Files that are the same keep their times, so that little is built again.
    fn make() -> Result<Copy> {
        let target = tree::root().join("target");
        let root = target.join("mutants");
        let mut kept = vec![];
        for file in tree::files()? {
            // The models' data is read where it is.
            if file.starts_with("tests") {
                continue;
            }
            let (from, to) = (tree::root().join(&file), root.join(&file));
            let bytes = std::fs::read(&from)?;
            if std::fs::read(&to).ok().as_ref() != Some(&bytes) {
                std::fs::create_dir_all(to.parent().unwrap_or(&root))?;
                std::fs::write(&to, bytes)?;
            }
            kept.push(file);
        }
        remove_others(&root, &root, &kept)?;
        let tests = root.join("tests");
        if !tests.exists() {
            link(&tree::root().join("tests"), &tests)?;
        }
        Ok(Copy { root, target })
    }

    /// The verdict on a mutation; the copy is whole again afterwards.
    fn broken(&self, mutation: &Mutation) -> Result<Verdict> {
        let path = self.root.join(mutation.file);
        let whole = std::fs::read_to_string(&path)?;
        std::fs::write(&path, whole.replacen(mutation.old, mutation.new, 1))?;
        let verdict = self.verdict();
        std::fs::write(&path, whole)?;
        verdict
    }

    /// Builds the suites and runs them until one fails.
    fn verdict(&self) -> Result<Verdict> {
        let programs = self.build()?;
        for suite in SUITES {
            let program = programs.get(suite).with_context(|| format!("cargo built no {suite:?}"))?;
            if !self.passes(program, suite)? {
                return Ok(Verdict::Caught(format!("{} of {}", suite.1, suite.0)));
            }
        }
        Ok(Verdict::Missed)
    }

    /// The suites' programs.
    fn build(&self) -> Result<BTreeMap<(&'static str, &'static str), PathBuf>> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--no-run", "--quiet", "--message-format", "json"]);
        for (package, test) in SUITES {
            cargo.args(["--package", package, "--test", test]);
        }
        cargo.env("CARGO_TARGET_DIR", &self.target).current_dir(&self.root);
        let out = cargo.stderr(Stdio::inherit()).output().context("cargo cannot be run")?;
        let lines = String::from_utf8_lossy(&out.stdout);
        let messages: Vec<Value> = lines.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        if !out.status.success() {
            let errors = messages.iter().filter_map(|m| m["message"]["rendered"].as_str());
            bail!("the code does not build:\n{}", errors.collect::<String>());
        }
        let mut programs = BTreeMap::new();
        for m in &messages {
            let (Some(program), Some(id)) = (m["executable"].as_str(), m["package_id"].as_str()) else {
                continue;
            };
            let is = |(package, test): &&(&str, &str)| id.contains(package) && m["target"]["name"] == *test;
            if let Some(suite) = SUITES.iter().find(is) {
                programs.insert(*suite, PathBuf::from(program));
            }
        }
        Ok(programs)
    }

    fn passes(&self, program: &Path, suite: &(&str, &str)) -> Result<bool> {
        let log = self.target.join(format!("mutants-{}.log", suite.1));
        let out = File::create(&log)?;
        let mut child = Command::new(program)
            .current_dir(&self.root)
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("{} cannot be run", program.display()))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            if start.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Removes files of an earlier copy that the repository no longer has.
fn remove_others(root: &Path, folder: &Path, kept: &[PathBuf]) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            remove_others(root, &path, kept)?;
        } else if !kept.iter().any(|k| root.join(k) == path) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(from, to)?)
}

#[cfg(windows)]
fn link(from: &Path, to: &Path) -> Result<()> {
    Ok(std::os::windows::fs::symlink_dir(from, to)?)
}
