//! The browser build, checked where it will live: a page in a headless browser loads it, answers prompts of goldens, and
//! reports what happened.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::serve::serve;
use crate::toolchain::{install, output, run_to_end};
use crate::tree;
use crate::wasm::{TARGET, folder, toolchain};

/// Longest time for the whole page.
const LIMIT: Duration = Duration::from_secs(600);

/// A software adapter, WebGPU on it although it is one, and none of what a browser does on the network by itself.
const BROWSER: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-logging=stderr",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-quic",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
];

/// Builds the page, runs it, and prints its report.
pub(crate) fn run() -> Result<()> {
    let build = build()?;
    let browser = browser()?;
    let (address, reports) = serve(vec![
        ("/", tree::root().join("crates/web/tests/page")),
        ("/build/", build),
        ("/goldens/", tree::root().join("tests/goldens")),
        ("/goldens-gguf/", tree::root().join("tests/goldens-gguf")),
    ])?;
    let log = folder().join("browser.log");
    let profile = folder().join("browser");
    if profile.exists() {
        std::fs::remove_dir_all(&profile)?;
    }
    let mut command = Command::new(&browser);
    command.args(BROWSER).arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("http://{address}/"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
    let child = command.spawn().with_context(|| format!("{} cannot be run", browser.display()))?;
    let mut running = Browser(child);
    let end = Instant::now() + LIMIT;
    let mut failed = vec![];
    let mut passed = 0;
    loop {
        match reports.recv_timeout(Duration::from_millis(200)) {
            Ok(report) => {
                let report = serde_json::from_str(&report).context("a report of the page is not JSON")?;
                match print(&report) {
                    Some((_, true)) => passed += 1,
                    Some((name, false)) => failed.push(name),
                    None => break,
                }
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the server of the page ended"),
            Err(RecvTimeoutError::Timeout) => {
                let gone = running.0.try_wait()?;
                if gone.is_some() || Instant::now() > end {
                    let why = gone.map_or("did not finish in time".to_owned(), |s| format!("ended ({s})"));
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    bail!("the browser {why} after the checks above; it said:\n{}", page_lines(&said));
                }
            }
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    ensure!(failed.is_empty(), "failed in the browser: {} (its log is {})", failed.join(", "), log.display());
    ensure!(passed > 0, "the page ran no check");
    Ok(())
}

/// Ends with its value.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What pages said, of a browser's log that is full of services this machine lacks.
fn page_lines(log: &str) -> String {
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("CONSOLE") || line.contains("gpu")).collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Prints a report; gives the name of the check and whether it passed, or nothing at the end.
fn print(report: &Value) -> Option<(String, bool)> {
    let text = |key: &str| report[key].as_str().unwrap_or_default();
    if report["done"] == true {
        println!("adapter: {}", text("adapter"));
        return None;
    }
    let passed = report["passed"] == true;
    let verdict = if passed { "ok" } else { "FAILED" };
    println!(
        "{verdict:6} {} ({:.1} s): {}",
        text("name"),
        report["seconds"].as_f64().unwrap_or(0.0),
        text("note")
    );
    Some((text("name").to_owned(), passed))
}

/// Builds the module and its JavaScript; gives their folder.
fn build() -> Result<PathBuf> {
    let toolchain = toolchain()?;
    let bindgen = bindgen()?;
    run_to_end(toolchain.cargo("build").args(["--quiet", "--package", "gristmill-web"]))?;
    let module = folder().join("build").join(TARGET).join("debug/gristmill_web.wasm");
    let to = folder().join("page");
    run_to_end(Command::new(bindgen).args(["--target", "web", "--out-dir"]).arg(&to).arg(module))?;
    Ok(to)
}

/// The `wasm-bindgen` program, which must be of the very version of the crate.
fn bindgen() -> Result<PathBuf> {
    let lock = tree::read("Cargo.lock".as_ref())?;
    let package = lock.split("[[package]]").find(|p| p.contains("name = \"wasm-bindgen\"\n"));
    let version = package.and_then(|p| p.split("version = \"").nth(1)?.split('"').next());
    let version = version.context("Cargo.lock has no wasm-bindgen")?;
    let ours = folder().join("tools/bin/wasm-bindgen");
    for program in [PathBuf::from("wasm-bindgen"), ours.clone()] {
        let said = output(Command::new(&program).arg("--version")).unwrap_or_default();
        if said.split_whitespace().nth(1) == Some(version) {
            return Ok(program);
        }
    }
    println!("installing wasm-bindgen-cli {version} in {}", folder().join("tools").display());
    let mut install = Command::new(env!("CARGO"));
    install.args(["install", "wasm-bindgen-cli", "--quiet", "--force", "--no-default-features"]);
    install.args(["--bin", "wasm-bindgen", "--version", version, "--root"]).arg(folder().join("tools"));
    // It runs for a second, and an optimised build of it takes minutes.
    install
        .args(["--profile", "dev"])
        .envs([("CARGO_PROFILE_DEV_DEBUG", "none"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0")]);
    run_to_end(&mut install).with_context(|| {
        format!("the browser build needs the program wasm-bindgen {version}: `cargo install wasm-bindgen-cli --version {version}`")
    })?;
    Ok(ours)
}

/// A browser, installed where that is possible.
fn browser() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("GRISTMILL_BROWSER") {
        return Ok(PathBuf::from(path));
    }
    let found = || {
        let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
        names.into_iter().find(|name| output(Command::new(name).arg("--version")).is_ok()).map(PathBuf::from)
    };
    if let Some(browser) = found() {
        return Ok(browser);
    }
    install(&["chromium"]).context(
        "the page needs Chromium or Chrome on the PATH, or its path in GRISTMILL_BROWSER; installing Debian's failed",
    )?;
    found().context("chromium was installed and cannot be run")
}
