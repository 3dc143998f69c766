//! Files that are no models, each with the message that a newcomer reads: `malformed.txt`, beside this file.
//!
//! `UPDATE_MESSAGES=1 cargo test -p gristmill-cli malformed` writes it anew; read what changed.

mod cases;
mod raw;

use std::path::Path;
use std::process::Output;

use self::cases::{Case, cases};
use crate::support::*;

const MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/malformed/malformed.txt");

/// What the program says of a file, with `FILE` for its path and `DIR` for the folder around it.
fn told(case: &Case) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = (case.make)(dir.path());
    let run = |args: &[&str]| gristmill(&[args, &["-m", path.to_str().unwrap()]].concat());
    let output = run(case.command);
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}: {errors}", case.name);
    assert!(output.stdout.is_empty(), "{} wrote to standard output", case.name);
    assert!(errors.lines().any(|l| l.starts_with("error: ")), "{}: {errors}", case.name);
    assert!(!errors.contains("panick"), "{}: {errors}", case.name);
    // What `inspect` makes of it is its own matter, but no panic.
    let inspected = run(&["inspect"]);
    assert!(matches!(inspected.status.code(), Some(0 | 1)) && calm(&inspected), "{}", case.name);
    let place = |text: &str, path: &Path, name: &str| text.replace(path.to_str().unwrap(), name);
    let errors = place(&errors, &path, "FILE");
    let errors = place(&errors, dir.path(), "DIR");
    // What was settled on before the error.
    errors
        .lines()
        .skip_while(|line| !line.starts_with("error: "))
        .fold(String::new(), |all, l| all + l + "\n")
}

fn calm(output: &Output) -> bool {
    !String::from_utf8_lossy(&output.stderr).contains("panick")
}

#[test]
fn messages_about_malformed_files_are_those_that_were_read() {
    let cases = cases();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let mut all = String::new();
    for case in &cases {
        all += &format!("## {}\n{}\n", case.name, told(case));
    }
    if std::env::var_os("UPDATE_MESSAGES").is_some() {
        std::fs::write(MESSAGES, &all).unwrap();
    }
    let want = std::fs::read_to_string(MESSAGES).unwrap_or_default();
    let sections = |text: &str| text.split("## ").map(str::to_owned).collect::<Vec<_>>();
    for (got, want) in sections(&all).iter().zip(&sections(&want)) {
        assert_eq!(got, want);
    }
    assert_eq!(all.len(), want.len(), "cases have come or gone: see the head of this file");
}

/// Each says more than that it failed: where, and what to do.
#[test]
fn every_message_names_the_file_and_says_what_to_do() {
    const DO: [&str; 7] = ["fetch", "convert", "give ", "choose ", "download the", "join ", "quantise "];
    let messages = std::fs::read_to_string(MESSAGES).unwrap();
    for message in messages.split("## ").filter(|m| !m.is_empty()) {
        assert!(message.contains("FILE") || message.contains("DIR"), "{message}");
        assert!(DO.iter().any(|word| message.contains(word)), "nothing to do in\n{message}");
        assert!(message.len() < 2000, "{message}");
    }
}
