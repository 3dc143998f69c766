//! The transcripts of the README: every command there is run, and prints what the README says.
//!
//! A block of ```` ```console ```` holds commands, each behind `$ `, and below each what a terminal shows of it: results and
//! messages. Commands run in a shell, in the order of the README, in a folder of their own in which `tests` is the
//! repository's; files that one writes are there for the next. `...` on a line stands for any text in that line, on a line of
//! its own for any lines. What else differs from machine to machine needs no mark: times in seconds, and sizes of free memory,
//! stand as `...` there.
//!
//! Without further words a block must run anywhere: no network, no model but those of the repository. Words behind `console`
//! say what a block needs, and where that is missing it is not run:
//! - `default-model`: the default model in the user's cache folder;
//! - `network`: the network, and `GRISTMILL_README=network` set.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const README: &str = include_str!("../../../../README.md");

/// A command and what it shows.
#[derive(PartialEq, Debug)]
struct Step {
    line: usize,
    command: String,
    shown: Vec<String>,
}

/// A block with what it needs.
struct Block {
    needs: Vec<String>,
    steps: Vec<Step>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = vec![];
    let mut open = false;
    for (i, line) in text.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            let mut words = info.split_whitespace();
            open = !open && words.next() == Some("console");
            if open {
                blocks.push(Block { needs: words.map(str::to_owned).collect(), steps: vec![] });
            }
            continue;
        }
        let Some(block) = blocks.last_mut().filter(|_| open) else { continue };
        match (line.strip_prefix("$ "), block.steps.last_mut()) {
            (Some(command), _) => {
                block.steps.push(Step { line: i + 1, command: command.to_owned(), shown: vec![] });
            }
            (None, Some(step)) if step.command.ends_with('\\') => {
                step.command += "\n";
                step.command += line;
            }
            (None, Some(step)) => step.shown.push(line.to_owned()),
            (None, None) => panic!("README.md:{}: a transcript begins with `$ `", i + 1),
        }
    }
    blocks
}

/// Whether a line is the one shown, in which `...` is any text.
fn fits(shown: &str, line: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        last = Some(part);
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || last.is_some_and(|last| last.is_empty() || rest.ends_with(last))
}

/// Whether lines are those shown; a line of `...` alone is any number of them.
fn all_fit(shown: &[String], lines: &[&str]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((any, rest)) if any == "..." => (0..=lines.len()).any(|n| all_fit(rest, &lines[n..])),
        Some((first, rest)) => {
            lines.split_first().is_some_and(|(line, more)| fits(first, line) && all_fit(rest, more))
        }
    }
}

#[test]
fn transcripts_are_what_the_program_prints() {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    std::os::unix::fs::symlink(root.join("tests"), dir.path().join("tests")).unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_gristmill"));
    let path = std::env::join_paths(
        [program.parent().unwrap().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let path = path.unwrap();
    let cache = default_cache();
    let mut wrong = String::new();
    let mut ran = 0;
    for block in blocks(README) {
        let here = |need: &String| match need.as_str() {
            "default-model" => cache.is_some(),
            "network" => std::env::var("GRISTMILL_README").is_ok_and(|set| set == "network"),
            other => panic!("README: a transcript needs `{other}`, which this test does not know"),
        };
        if !block.needs.iter().all(here) {
            continue;
        }
        let cache = match &cache {
            Some(cache) if block.needs.iter().any(|need| need == "default-model") => cache.clone(),
            _ => dir.path().join("cache"),
        };
        for step in &block.steps {
            let mut shell = Command::new("sh");
            // As on a terminal: one stream.
            let (mut reader, writer) = std::io::pipe().unwrap();
            shell.arg("-c").arg(&step.command).current_dir(dir.path()).stdin(Stdio::null());
            shell
                .env("PATH", &path)
                .env("GRISTMILL_CACHE", &cache)
                .env("COLUMNS", "100")
                .env("NO_COLOR", "1");
            shell.stdout(writer.try_clone().unwrap()).stderr(writer);
            let mut child = shell.spawn().unwrap();
            drop(shell);
            let mut printed = String::new();
            std::io::Read::read_to_string(&mut reader, &mut printed).unwrap();
            child.wait().unwrap();
            ran += 1;
            let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
            if !all_fit(&step.shown, &lines) {
                let shown = step.shown.join("\n");
                wrong += &format!(
                    "README.md:{}: $ {}\n--- it shows\n{shown}\n--- it is\n{printed}\n",
                    step.line, step.command
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(ran >= 8, "{ran} commands were run");
}

/// The user's cache folder, when the default model is in it.
fn default_cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = || set("HOME").map(|home| home.join(".cache"));
    let user = || set("XDG_CACHE_HOME").or_else(home).map(|dir| dir.join("gristmill/models"));
    let dir = set("GRISTMILL_CACHE").or_else(user)?;
    dir.join("SmolLM2-135M-Instruct.Q4_1.gguf").exists().then_some(dir)
}

/// Installing comes first, and asks for what the workspace does.
#[test]
fn the_readme_says_how_to_install_before_anything_is_used() {
    let workspace = include_str!("../../../../Cargo.toml");
    let version = workspace.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(README.contains(&format!("Rust {version} or newer")), "Rust {version}");
    let at = |text: &str| README.find(text).unwrap_or_else(|| panic!("{text} is not there"));
    assert!(at("git clone") < at("cargo install") && at("cargo install") < at("gristmill run"));
    // A shell makes no folders for what it writes.
    assert!(at("mkdir -p ~/.local/share/bash-completion/completions") < at("gristmill completions bash >"));
}

#[test]
fn transcripts_are_read_and_compared() {
    let text = "```console network\n$ one \\\n  two\n...\nshown ... here\n$ three\n```\n```sh\n$ four\n```\n";
    let read = blocks(text);
    assert_eq!((read.len(), read[0].needs.len(), read[0].steps.len()), (1, 1, 2));
    assert_eq!(read[0].steps[0].command, "one \\\n  two");
    let shown = &read[0].steps[0].shown;
    assert!(all_fit(shown, &["a", "b", "shown 12 here"]) && all_fit(shown, &["shown  here"]));
    assert!(!all_fit(shown, &["a", "shown 12 there"]) && !all_fit(shown, &["shown 1 here", "more"]));
    assert!(fits("a...", "abc") && fits("...c", "abc") && fits("abc", "abc"));
    assert!(!fits("abc", "abcd") && !fits("b...", "abc") && !fits("a...b", "abc"));
}
