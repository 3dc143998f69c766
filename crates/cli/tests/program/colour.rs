//! Colours and progress are for terminals.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::*;

/// What the program writes to a terminal, which is its standard output and error.
fn on_terminal(args: &[&str], variables: &[(&str, &str)]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, vec![]).unwrap();
    let open = || {
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        Stdio::from(File::from(rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).unwrap()))
    };
    let mut command = plain();
    command.args(args).env("TERM", "xterm").envs(variables.iter().copied());
    let mut child = command.stdout(open()).stderr(open()).spawn().unwrap();
    drop(command);
    let reader = std::thread::spawn(move || {
        let mut text = vec![];
        // The end of a terminal whose other side is closed is an error.
        let _ = File::from(master).read_to_end(&mut text);
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
