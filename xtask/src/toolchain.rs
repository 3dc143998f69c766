//! Compilers for other targets than the host.
//!
//! A standard library for a target comes, in this order, from the toolchain itself, from the compiler's source in the
//! toolchain, or from the compiler's source as Debian packages it, which is fetched into `target/std` through a
//! configuration of apt's own: nothing is installed, and the system's sources stay as they are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::tree;

/// Where the source of the standard library and the compilers that know of it are.
fn folder() -> PathBuf {
    tree::root().join("target/std")
}

/// Runs a command.
///
/// # Errors
/// It cannot be run or fails.
pub(crate) fn run_to_end(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name} cannot be run"))?;
    ensure!(status.success(), "{name} failed ({status}): {command:?}");
    Ok(())
}

/// What a command prints.
///
/// # Errors
/// It cannot be run or fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().with_context(|| format!("{name} cannot be run"))?;
    ensure!(out.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).with_context(|| format!("{name} printed something that is not text"))
}

/// Installs packages of the system's with apt.
///
/// # Errors
/// There is no apt, it may not install, or it does not know one of them.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    println!("installing {}", packages.join(" "));
    let apt = |args: &[&str]| {
        run_to_end(
            Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet=2").args(args),
        )
    };
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"], packages].concat())
}

/// A compiler that can build for a target.
pub(crate) struct Toolchain {
    target: &'static str,
    /// Where it builds, apart from the host's builds, whose compiler may be another.
    build: PathBuf,
    /// Compiler and sysroot, instead of the toolchain's own.
    own: Option<(PathBuf, PathBuf)>,
    /// The standard library is built too.
    build_std: bool,
}

impl Toolchain {
    /// Finds a toolchain for a target, or makes one. It builds in the folder `build`.
    ///
    /// # Errors
    /// There is none and none can be made; the message says what to install.
    pub(crate) fn find(target: &'static str, build: PathBuf) -> Result<Toolchain> {
        let rustc = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let sysroot = output(Command::new(&rustc).args(["--print", "sysroot"]))?;
        let sysroot = Path::new(sysroot.trim());
        let found = Toolchain { target, build, own: None, build_std: true };
        if sysroot.join("lib/rustlib").join(target).join("lib").is_dir() {
            return Ok(Toolchain { build_std: false, ..found });
        }
        if sysroot.join("lib/rustlib/src/rust/library/Cargo.lock").is_file() {
            return Ok(found);
        }
        let own = with_source(&rustc, sysroot).with_context(|| {
            format!(
                "the Rust toolchain has no standard library for {target}: `rustup target add {target}` installs it. \
                 Making one failed as follows"
            )
        })?;
        Ok(Toolchain { own: Some(own), ..found })
    }

    /// A cargo command for the target.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(tree::root()).arg(subcommand).args(["--target", self.target]);
        cargo.arg("--target-dir").arg(&self.build);
        // Line tables of a module that nobody debugs are four fifths of it.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "none").env("CARGO_PROFILE_TEST_DEBUG", "none");
        if let Some((rustc, sysroot)) = &self.own {
            // Clippy's driver takes the place of the compiler and asks nobody but this variable.
            cargo.env("RUSTC", rustc).env("SYSROOT", sysroot);
        }
        if self.build_std {
            // The stable compiler takes `-Z` so.
            cargo.arg("-Zbuild-std=std,panic_abort").env("RUSTC_BOOTSTRAP", "1");
        }
        cargo
    }
}

/// A compiler like `rustc` whose sysroot, given too, has the source of the standard library as well.
fn with_source(rustc: &Path, sysroot: &Path) -> Result<(PathBuf, PathBuf)> {
    let version = output(Command::new(rustc).arg("--version"))?;
    let version = version.split_whitespace().nth(1).context("rustc --version names no version")?.to_owned();
    let folder = folder().join(format!("rust-{version}"));
    let source = folder.join("source");
    if !source.join("library/Cargo.lock").is_file() {
        fetch_source(&version, &source)?;
    }
    let rustlib = folder.join("sysroot/lib/rustlib");
    std::fs::create_dir_all(rustlib.join("src"))?;
    let installed = sysroot.join("lib/rustlib");
    for entry in std::fs::read_dir(&installed).with_context(|| format!("{}", installed.display()))? {
        let entry = entry?;
        if entry.file_name() != "src" {
            link(&entry.path(), &rustlib.join(entry.file_name()))?;
        }
    }
    link(&source, &rustlib.join("src/rust"))?;
    let wrapper = folder.join("rustc");
    let (rustc, sysroot) = (sysroot.join("bin/rustc"), folder.join("sysroot"));
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let script = format!("#!/bin/sh\nexec {} --sysroot {} \"$@\"\n", quoted(&rustc), quoted(&sysroot));
    if std::fs::read_to_string(&wrapper).ok().as_ref() != Some(&script) {
        // Not rewritten for nothing: cargo asks a compiler that changed everything again.
        std::fs::write(&wrapper, script)?;
        run_to_end(Command::new("chmod").arg("+x").arg(&wrapper))?;
    }
    Ok((wrapper, folder.join("sysroot")))
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> Result<()> {
    if std::fs::read_link(at).ok().as_deref() == Some(to) {
        return Ok(());
    }
    if at.is_symlink() {
        std::fs::remove_file(at)?;
    }
    std::os::unix::fs::symlink(to, at).with_context(|| format!("{}", at.display()))
}

#[cfg(not(unix))]
fn link(_to: &Path, _at: &Path) -> Result<()> {
    bail!("this is done only on Debian")
}

/// Fetches `library/` of the compiler's source of exactly this version, as Debian's backports have it.
fn fetch_source(version: &str, source: &Path) -> Result<()> {
    let apt = Apt::new()?;
    apt.get("update")?;
    let offered = output(apt.command("apt-cache").args(["madison", "rust-src"]))?;
    let versions = || offered.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let Some(found) = versions().find(|v| v.starts_with(&format!("{version}+"))) else {
        let versions = versions().collect::<Vec<_>>().join(", ");
        bail!("{SUITE} has rust-src {versions}, and the compiler is {version}: no other fits");
    };
    println!("fetching the source of the standard library: rust-src {found}");
    run_to_end(apt.command("apt-get").args(["--quiet=2", "download"]).arg(format!("rust-src={found}")))?;
    let file = std::fs::read_dir(&apt.folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .context("apt-get download left no package")?;
    // First beside its place, so that what is there is whole.
    let partial = source.with_extension("partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    std::fs::create_dir_all(&partial)?;
    let mut archive =
        Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&file).stdout(Stdio::piped()).spawn()?;
    let unpack = archive.stdout.take().context("dpkg-deb has no output")?;
    let library = format!("./usr/src/rustc-{version}/library");
    let mut tar = Command::new("tar");
    tar.args(["-x", "--strip-components=4", "-C"]).arg(&partial).arg(library).stdin(unpack);
    run_to_end(&mut tar)?;
    ensure!(archive.wait()?.success(), "dpkg-deb failed");
    std::fs::rename(&partial, source).with_context(|| format!("{}", source.display()))?;
    std::fs::remove_dir_all(&apt.folder)?;
    Ok(())
}

/// The suite that follows the compiler's releases.
const SUITE: &str = "trixie-backports";

/// Debian's packages of [`SUITE`], beside those that the system is made of.
struct Apt {
    /// Lists and downloads.
    folder: PathBuf,
}

impl Apt {
    fn new() -> Result<Apt> {
        let targets = output(Command::new("apt-get").args([
            "indextargets",
            "--no-release-info",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ]))?;
        let system = std::fs::read_to_string("/etc/os-release")?;
        let field = |name: &str| system.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        ensure!(field("ID") == Some("debian"), "the compiler's source is fetched on Debian only");
        let release = field("VERSION_CODENAME").context("/etc/os-release has no VERSION_CODENAME")?;
        let mirror = targets.lines().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [mirror, of, "main"] if of == release => Some(mirror),
            _ => None,
        });
        let mirror = mirror.with_context(|| format!("apt has no source of Debian {release} main"))?;
        let folder = folder().join("apt");
        std::fs::create_dir_all(folder.join("lists/partial"))?;
        std::fs::create_dir_all(folder.join("cache/archives/partial"))?;
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        std::fs::write(
            folder.join("sources.list"),
            format!("deb [signed-by={keys}] {mirror} {SUITE} main\n"),
        )?;
        Ok(Apt { folder })
    }

    /// One of apt's programs, in the folder.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        for (key, value) in
            [("Etc::sourcelist", "sources.list"), ("State::lists", "lists"), ("Cache", "cache")]
        {
            command.arg("-o").arg(format!("Dir::{key}={}", self.folder.join(value).display()));
        }
        command.args(["-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Sandbox::User="]);
        command
    }

    fn get(&self, what: &str) -> Result<()> {
        run_to_end(self.command("apt-get").args(["--quiet=2", what]))
    }
}
