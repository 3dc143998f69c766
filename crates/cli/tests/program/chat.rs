//! `chat` on pipes: answers on standard output, all else on standard error.

use crate::support::*;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";

/// A model with a template, at a path.
fn model() -> (tempfile::NamedTempFile, String) {
    let file = with_template(TEMPLATE);
    let path = file.path().to_str().expect("the path is UTF-8").to_owned();
    (file, path)
}

/// What `chat` makes of some lines, and whether all was followed.
fn chat(model: &str, more: &[&str], lines: &[&str]) -> (bool, String, String) {
    let args = [&["chat", "-m", model, "-n", "6", "--ignore-eos", "-c", "512"], more].concat();
    let (code, out, errors) = fed(&args, lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    assert!(matches!(code, Some(0 | 1)), "{code:?}: {errors}");
    (code == Some(0), out, errors)
}

#[test]
fn every_line_is_a_turn_of_one_conversation() {
    let (_file, model) = model();
    let (done, out, errors) = chat(&model, &[], &["Why is the sky blue?", "", "And at sunset?"]);
    assert!(done, "{errors}");
    let first = ok(&["run", "-m", &model, "-n", "6", "--ignore-eos", "-c", "512", "Why is the sky blue?"]);
    assert!(out.starts_with(&first) && out.len() > first.len(), "{out:?}");
    let notes: Vec<&str> = errors.lines().filter(|line| line.contains("from the cache")).collect();
    assert_eq!(notes.len(), 2, "{errors}");
    assert!(notes[0].contains(" 0 of them from the cache") && !notes[1].contains(" 0 of them"), "{errors}");
    // The system message is part of it, and what is asked for again is answered alike.
    let (_, other, _) = chat(&model, &["--system", "Be brief."], &["Why is the sky blue?"]);
    assert_ne!(other, first);
    let lines = ["/system Be brief.", "Why is the sky blue?", "/retry", "/undo", "Why is the sky blue?"];
    let (done, out, errors) = chat(&model, &[], &lines);
    assert!(done && out == other.repeat(3), "{out:?} {errors}");
    let (done, out, _) =
        chat(&model, &[], &["\"\"\"", "Why is", "", "the sky blue?", "\"\"\"", "/history", "/quit", "no"]);
    assert!(done && out.ends_with('\n'));
}

#[test]
fn commands_are_told_on_standard_error() {
    let (_file, model) = model();
    let lines =
        ["/help", "/set", "/set temperature 0.7", "/set seed 3", "/stats", "/system", "Why?", "/history"];
    let (done, out, errors) = chat(&model, &[], &lines);
    assert!(done, "{errors}");
    for part in [
        "/retry",
        "top_p 1",
        "temperature 0.7",
        "0 of 512 tokens",
        "no system message",
        "user: Why?",
        "seed 3",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    let (_, alone, _) = chat(&model, &["--temperature", "0.7", "--seed", "3"], &["Why?"]);
    assert_eq!(out, alone);
}

#[test]
fn mistakes_are_told_and_the_rest_goes_on() {
    let (_file, model) = model();
    let (_, want, _) = chat(&model, &[], &["Why?"]);
    for (line, parts) in [
        ("/hepl", &["no command /hepl", "/help", "/quit"][..]),
        ("/set temperature cold", &["temperature needs a number"]),
        ("/undo", &["nothing to take back"]),
        ("/retry", &["no question yet"]),
        ("/load", &["needs the name of a file"]),
        ("/load /no/such/file", &["/no/such/file cannot be loaded"]),
        ("/save /no/such/folder/file", &["/no/such/folder/file cannot be written"]),
    ] {
        let (done, out, errors) = chat(&model, &[], &[line, "Why?"]);
        assert!(!done && out == want, "{line}: {out:?}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{line}: {errors}");
        assert!(errors.contains("one line of the input was not followed"), "{errors}");
    }
    let (done, out, errors) = chat(&model, &[], &["Why?", "\"\"\"How"]);
    assert!(!done && out == want && errors.contains("the input ends inside a message"), "{errors}");
    // A slash can be said, and is none of a command.
    let (done, ..) = chat(&model, &[], &["//etc"]);
    assert!(done);
}

#[test]
fn a_full_context_is_told_with_what_to_do() {
    let (_file, model) = model();
    let long = "so ".repeat(40);
    let args = ["chat", "-m", &model, "-c", "64", "-n", "4", "--ignore-eos"];
    let (code, out, errors) = fed(&args, format!("Why?\n{long}\n/stats\nHow?\n"));
    assert_eq!((code, out.lines().count()), (Some(1), 2), "{out:?} {errors}");
    for part in ["the context holds 64", "nothing was dropped", "/undo", "/clear", "--context"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    let args = ["chat", "-m", &model, "-c", "64", "--ignore-eos"];
    let (code, _, errors) = fed(&args, "Why?\n");
    assert!(code == Some(0) && errors.contains("fill the context of 64 tokens"), "{errors}");
}

#[test]
fn a_saved_conversation_goes_on_in_another_process() {
    let (_file, model) = model();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sky.session").to_str().unwrap().to_owned();
    let (save, load) = (format!("/save {file}"), format!("/load {file}"));
    let (_, whole, _) = chat(&model, &[], &["Why?", "And you?", "How?"]);
    let (done, before, _) = chat(&model, &[], &["Why?", "And you?", &save]);
    assert!(done);
    let copy = dir.path().join("copy.session").to_str().unwrap().to_owned();
    for more in [&["--session", &copy][..], &[]] {
        std::fs::copy(&file, &copy).unwrap();
        let lines = [&[load.as_str()][..], &["How?"]].concat();
        let (done, after, errors) = chat(&model, more, if more.is_empty() { &lines } else { &lines[1..] });
        assert!(done && before.clone() + &after == whole, "{errors}");
        assert!(errors.contains("4 messages") && !errors.contains(" 0 of them"), "{errors}");
    }
    // Another context: the states are of no use, which is said once, and the answer is the same.
    let args = ["chat", "-m", &model, "-n", "6", "--ignore-eos", "-c", "480", "--session", &file];
    let (code, after, errors) = fed(&args, "How?\n");
    assert!(code == Some(0) && before + &after == whole, "{errors}");
    assert!(errors.contains("fingerprint"), "{errors}");
    assert_eq!(errors.matches("computed again").count(), 1, "{errors}");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 9]).unwrap();
    let errors = fails(&args, 1);
    assert!(errors.contains("cannot be loaded") && errors.contains("damaged"), "{errors}");
    // A file of another kind is not lost for a slip of the hand.
    let before = std::fs::read(&model).unwrap();
    let (done, _, errors) = chat(&model, &[], &[&format!("/save {model}")]);
    assert!(!done && errors.contains("is no saved session: give another name"), "{errors}");
    assert!(std::fs::read(&model).unwrap() == before);
    let errors = fails(&["chat", "-m", &model, "--session", &model], 1);
    assert!(errors.contains("not a saved session"), "{errors}");
    // What may never end is not read.
    #[cfg(unix)]
    for endless in ["/dev/zero", "/dev/urandom"] {
        let errors = fails(&["chat", "-m", &model, "--session", endless], 1);
        assert!(errors.contains("not a regular file"), "{errors}");
    }
}

/// Begun, left, gone on with, changed for another: each conversation is in its own file, for the user alone to read.
#[test]
fn a_session_is_saved_on_leaving() {
    let (_file, model) = model();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (file, other) = (at("my talk"), at("other"));
    let (_, whole, _) = chat(&model, &[], &["Why?", "And you?"]);
    let session = ["--session", &file];
    // Nothing said, nothing saved.
    let (done, _, errors) = chat(&model, &session, &["/system Be brief.", "/quit"]);
    assert!(done && errors.contains("a new conversation begins, and is saved there on leaving"), "{errors}");
    assert!(!std::path::Path::new(&file).exists());
    let (done, first, errors) = chat(&model, &session, &["Why?"]);
    let resume = format!("to go on with it: gristmill chat -m {model} -c 512 --session '{file}'");
    assert!(done && errors.contains("2 messages") && errors.contains(&resume), "{errors}");
    let (done, second, errors) = chat(&model, &session, &["And you?", "/quit"]);
    assert!(done && first + &second == whole && errors.contains("4 messages, "), "{errors}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // What has nothing new is not written again, and a mistake does not keep it from being saved.
    let before = std::fs::read(&file).unwrap();
    let (done, ..) = chat(&model, &session, &["/history"]);
    assert!(done && std::fs::read(&file).unwrap() == before);
    let (done, _, errors) = chat(&model, &session, &["How?", "/hepl", "\"\"\"never said"]);
    assert!(!done && errors.contains("6 messages"), "{errors}");
    // A copy is no home; another conversation has its own.
    let (done, _, errors) = chat(&model, &session, &["Who?", &format!("/save {other}"), "Where?"]);
    assert!(done && errors.contains("8 messages") && errors.contains("10 messages"), "{errors}");
    let lines = ["Whence?", &format!("/load {other}"), "What?"];
    let (done, _, errors) = chat(&model, &session, &lines);
    assert!(done && errors.contains("12 messages") && errors.contains("10 messages"), "{errors}");
    for (file, messages) in [(&file, "12 messages"), (&other, "10 messages")] {
        let (_, _, errors) = chat(&model, &["--session", file], &[]);
        assert!(errors.contains(messages), "{errors}");
    }
    // A place that cannot be written is told before anything is said.
    let errors = fails(&["chat", "-m", &model, "--session", "/no/such/folder/file"], 1);
    assert!(errors.contains("the folder /no/such/folder is not there"), "{errors}");
}

#[test]
fn a_model_without_a_template_is_told() {
    let model = tests("goldens-gguf/llama.gguf");
    let errors = fails(&["chat", "-m", &model], 1);
    assert!(errors.contains("no chat template"), "{errors}");
    // What is advised is a command line that works.
    let line = errors.split('`').nth(1).unwrap();
    assert!(line.starts_with(&format!("gristmill run -m {model} \"")), "{errors}");
    let text = line.split('"').nth(1).unwrap();
    ok(&["run", "-m", &model, "-n", "2", text]);
}
