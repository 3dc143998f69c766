//! Help, completions and manual: what is made from the table of options.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::*;

/// The commands, as the help lists them.
pub(crate) fn commands() -> Vec<String> {
    let help = ok(&["--help"]);
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // Names are indented by two, what continues a line by more.
    let names = list.lines().filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    names.map(|l| l.split_whitespace().next().unwrap().to_owned()).filter(|name| name != "help").collect()
}

#[test]
fn the_long_help_has_examples_and_exit_codes_and_the_short_one_is_short() {
    let commands = commands();
    assert!(commands.len() >= 13, "{commands:?}");
    for command in &commands {
        let (short, long) = (ok(&[command, "-h"]), ok(&[command, "--help"]));
        assert!(long.contains("\nExamples:\n  ") && long.contains("\nExit codes:\n  0  done"), "{long}");
        assert!(!short.contains("Examples:") && short.len() < long.len(), "{short}");
        for rare in ["--isa", "--chunk", "--gpu-limits", "--gpu-without"] {
            assert!(!short.contains(rare), "{command}: {rare} is for the long help");
        }
    }
    let run = ok(&["run", "--help"]);
    for part in ["Model and device:", "Sampling:", "Tuning and debugging:", "--isa <NAME>", "--gpu-without"] {
        assert!(run.contains(part), "{run}");
    }
    for part in ["Environment:", "GRISTMILL_CACHE", "NO_COLOR"] {
        assert!(ok(&["--help"]).contains(part));
    }
}

#[test]
fn the_default_model_is_told_wherever_it_is_used() {
    for command in ["run", "inspect", "tokenize"] {
        let help = ok(&[command, "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["SmolLM2-135M-Instruct (Q4_1)", "93.8 MiB", "licence Apache-2.0"] {
            assert!(help.contains(part), "{command}: {part} is missing from {help}");
        }
    }
}

fn runs(program: &str) -> bool {
    let probe = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|s| s.success())
}

/// What a program says of a text, which it must take.
fn judged(program: &str, args: &[&str], text: &str) -> String {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text = text.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program}: {errors}");
    errors
}

#[test]
fn completions_know_every_command_and_option() {
    for (shell, marks) in [
        ("bash", &["_gristmill()", "complete -F _gristmill"][..]),
        ("zsh", &["#compdef gristmill"]),
        ("fish", &["complete -c gristmill"]),
        ("powershell", &["Register-ArgumentCompleter"]),
        ("elvish", &["edit:completion:arg-completer[gristmill]"]),
    ] {
        let script = ok(&["completions", shell]);
        assert!(marks.iter().all(|mark| script.contains(mark)), "{shell}: {script}");
        for command in commands() {
            assert!(script.contains(&command), "{shell} does not know {command}");
        }
        for option in ["max-tokens", "logit-bias", "kv-memory", "kv-type", "gpu-without"] {
            assert!(script.contains(option), "{shell} does not know --{option}");
        }
        // The shells that are here read it.
        let check: &[&str] = match shell {
            "bash" | "zsh" => &["-n"],
            "fish" => &["--no-execute", "/dev/stdin"],
            _ => &[],
        };
        if !check.is_empty() && runs(shell) {
            assert_eq!(judged(shell, check, &script), "", "{shell}");
        }
    }
    let errors = fails(&["completions", "abacus"], 2);
    assert!(errors.contains("bash") && errors.contains("elvish"), "{errors}");
}

/// Completing as a user does, in the shell that every machine has.
#[test]
fn bash_completes_commands_options_and_values() {
    if !runs("bash") {
        return;
    }
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let script = format!(
            "source <(cat)\nCOMP_WORDS=({line})\nCOMP_CWORD={}\n_gristmill gristmill {:?} {:?}\necho \"${{COMPREPLY[@]}}\"",
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(ok(&["completions", "bash"]).as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("gristmill tok"), "tokenize");
    assert_eq!(complete("gristmill run --max-t"), "--max-tokens");
    assert_eq!(complete("gristmill run --precision e"), "exact");
    assert_eq!(complete("gristmill perplexity --kv-type q"), "q8_0");
    assert_eq!(complete("gristmill inspect --graph s"), "svg");
}

#[test]
fn the_manual_has_a_page_for_each_command_that_groff_takes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("man1");
    ok(&["man", "--dir", path.to_str().unwrap()]);
    let mut names: Vec<String> =
        std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut want: Vec<String> = commands().iter().map(|c| format!("gristmill-{c}.1")).collect();
    want.push("gristmill.1".to_owned());
    want.sort();
    assert_eq!(names, want);
    let groff = runs("groff");
    for name in names {
        let page = std::fs::read_to_string(path.join(&name)).unwrap();
        let stem = name.strip_suffix(".1").unwrap();
        assert!(
            page.contains(&format!(".TH {stem}"))
                || page.contains(&format!(".TH {}", stem.replace('-', "\\-")))
        );
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXAMPLES", ".SH \"EXIT STATUS\""] {
            assert!(page.contains(part), "{name}: {part} is missing");
        }
        let printed = match stem.strip_prefix("gristmill-") {
            Some(command) => ok(&["man", command]),
            None => ok(&["man"]),
        };
        assert_eq!(printed, page);
        if groff {
            assert_eq!(judged("groff", &["-man", "-Tutf8", "-ww", "-z"], &page), "", "{name}");
        }
    }
    let errors = fails(&["man", "abacus"], 2);
    assert!(errors.contains("`abacus`") && errors.contains("tokenize"), "{errors}");
}

/// Whatever a command prints of itself, a standard output that cannot be written is an error, and one that nobody reads is none.
#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    let commands = commands();
    let of_commands = commands.iter().flat_map(|c| [vec![c, "-h"], vec![c, "--help"], vec!["help", c]]);
    let others = [&["--help"][..], &["-h"], &["help"], &["--version"], &["-V"], &["man"], &["man", "run"]];
    let shells = ["bash", "zsh", "fish", "powershell", "elvish"].map(|shell| vec!["completions", shell]);
    for args in of_commands.chain(others.map(<[&str]>::to_vec)).chain(shells) {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program().args(&args).stdout(full).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains("standard output cannot be written: No space left"), "{args:?}: {errors}");
        let (code, errors) = unread(&args);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{args:?}");
    }
}

/// Types are called what they are called elsewhere, in help, completions and errors; any case is read.
#[test]
fn types_are_shown_as_people_write_them() {
    let bash = ok(&["completions", "bash"]);
    for (args, code) in [
        (&["quantize", "a", "b", "abacus"][..], 2),
        (&["quantize", "a", "b", "Q8_0", "--tensor-type", "x=abacus"], 2),
        (&["synth", "--shape", "tiny", "--quant", "abacus", "x"], 2),
    ] {
        let errors = fails(args, code);
        for name in ["Q4_K", "BF16", "IQ4_XS"] {
            assert!(errors.contains(name) && !errors.contains(&name.to_lowercase()), "{args:?}: {errors}");
        }
    }
    let help = ok(&["quantize", "--help"]);
    for text in [&bash, &help] {
        assert!(text.contains("Q4_K_M") && !text.contains("q4_k_m"), "{text}");
    }
}
