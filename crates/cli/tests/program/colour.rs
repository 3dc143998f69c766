//! Colours and progress are for terminals.
#![cfg(target_os = "linux")]

use std::io::{Read, Seek, Write};
use std::process::Stdio;

use gristmill::parts::formats::gguf::Value;

use crate::support::*;

/// What the program writes to a terminal, which is its standard output and error.
fn on_terminal(args: &[&str], variables: &[(&str, &str)]) -> String {
    fed_on_terminal(args, variables, Stdio::null())
}

/// As [`on_terminal`], with a standard input.
fn fed_on_terminal(args: &[&str], variables: &[(&str, &str)], input: Stdio) -> String {
    let mut terminal = Terminal::open();
    let mut command = plain();
    command.args(args).env("TERM", "xterm").envs(variables.iter().copied());
    let mut child = command.stdin(input).stdout(terminal.end()).stderr(terminal.end()).spawn().unwrap();
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut text = vec![];
        // The end of a terminal whose other side is closed is an error.
        let _ = terminal.other.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    child.wait().unwrap();
    reader.join().unwrap()
}

/// The program without what colours go by.
fn plain() -> std::process::Command {
    let mut command = program();
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "COLORTERM", "CI"] {
        command.env_remove(name);
    }
    command
}

/// Command lines with all there is to colour: notes, warnings, errors, help.
fn lines(model: &str) -> [Vec<&str>; 4] {
    [
        vec!["run", "-m", model, "-c", "600", "-n", "2", "Hello"],
        vec!["run", "-m", "no/such.gguf", "Hello"],
        vec!["run", "--help"],
        vec!["run", "--abacus"],
    ]
}

#[test]
fn terminals_get_colours_unless_told_otherwise() {
    let model = tests("goldens-gguf/llama.gguf");
    for args in lines(&model) {
        assert!(on_terminal(&args, &[]).contains("\x1b["), "{args:?}");
        for off in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
            let text = on_terminal(&args, &[off]);
            // The bar moves the cursor, which is no colour; a dumb terminal cannot.
            let coloured = text.match_indices("\x1b[").any(|(at, _)| is_colour(&text[at + 2..]));
            assert!(!coloured, "{args:?} with {off:?}: {text:?}");
            assert!(off.0 != "TERM" || !text.contains('\x1b'), "{args:?} with {off:?}: {text:?}");
        }
    }
}

/// Whether an escape sequence ends with the `m` of colours.
fn is_colour(sequence: &str) -> bool {
    sequence.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
}

#[test]
fn pipes_get_no_escapes() {
    let model = tests("goldens-gguf/llama.gguf");
    for args in lines(&model) {
        for variables in
            [&[][..], &[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")], &[("CLICOLOR", "1")]]
        {
            let output = plain().args(&args).envs(variables.iter().copied()).output().unwrap();
            assert!(
                !output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b),
                "{args:?} {variables:?}"
            );
        }
    }
}

/// A saved conversation, a model's metadata and what a model says are text: a terminal does not obey it.
#[test]
fn terminals_obey_no_text_of_files_and_models() {
    const ORDER: &str = "\x1b]0;title\x07\x1b[2Jred\u{9b}31m";
    const SHOWN: &str = "\\u{1b}]0;title\\u{7}\\u{1b}[2Jred\\u{9b}31m";
    let obeyed = |text: &str| ["\x1b]0;title", "\x1b[2J", "\u{9b}"].iter().any(|order| text.contains(order));
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let model = with_template(template);
    let (model, dir) = (model.path().to_str().unwrap(), tempfile::tempdir().unwrap());
    let session = dir.path().join("a.session").to_str().unwrap().to_owned();
    let chat = ["chat", "-m", model, "-n", "4", "-c", "512", "--session", &session];
    assert_eq!(fed(&chat, format!("{ORDER}\n")).0, Some(0));
    let mut lines = tempfile::tempfile().unwrap();
    write!(lines, "/history\n/system {ORDER}\n/system\n/undo\n").unwrap();
    lines.rewind().unwrap();
    let text = fed_on_terminal(&chat, &[], lines.into());
    assert!(!obeyed(&text) && text.matches(SHOWN).count() >= 3, "{text:?}");
    // What the model says: the vocabulary has a token for every byte.
    for more in [&[][..], &["--json-lines"]] {
        let args = [
            &["run", "-m", model, "-n", "200", "--ignore-eos", "--temperature", "9", "--seed", "2", "x"],
            more,
        ]
        .concat();
        let (piped, shown) = (ok(&args), on_terminal(&args, &[("TERM", "dumb")]));
        let raw = |text: &str| text.chars().any(|c| c.is_control() && !"\n\t\r".contains(c));
        assert!(!more.is_empty() || raw(&piped), "{piped:?}");
        assert!(!raw(&shown), "{shown:?}");
    }
    let named = with_key("general.name", Value::String(ORDER.to_owned()));
    let text = on_terminal(&["inspect", "-m", named.path().to_str().unwrap()], &[]);
    assert!(!obeyed(&text) && text.matches(SHOWN).count() == 2, "{text:?}");
}
