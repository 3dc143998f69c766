//! `run`: where prompts come from, and what it prints for programs.

#[cfg(unix)]
use std::{io::Write, process::Stdio};

use serde_json::Value;

use crate::support::*;

fn model() -> String {
    tests("goldens-gguf/llama.gguf")
}

fn run(more: &[&str]) -> String {
    ok(&[&["run", "-m", &model(), "-n", "8", "--ignore-eos"], more].concat())
}

#[test]
fn prompts_come_from_words_files_and_standard_input() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "The mill grinds.\n").unwrap();
    let path = file.path().to_str().unwrap();
    let both = run(&["Read this:\n\nThe mill grinds."]);
    assert_eq!(run(&["-f", path]), run(&["The mill grinds."]));
    assert_eq!(run(&["--file", path, "Read", "this:"]), both);
    let model = model();
    let from_input = |more: &[&str]| {
        let args = [&["run", "-m", &model, "-n", "8", "--ignore-eos"], more].concat();
        let (code, out, errors) = fed(&args, "The mill grinds.\r\n");
        assert_eq!(code, Some(0), "{errors}");
        out
    };
    assert_eq!(from_input(&["-f", "-", "Read this:"]), both);
    // A word `-` is standard input where it stands.
    assert_eq!(from_input(&["Read", "this:", "-"]), both);
    assert_eq!(
        from_input(&["Read", "this:", "-", "And", "then?"]),
        run(&["Read this:\n\nThe mill grinds.\r\n\n\nAnd then?"])
    );
    assert_eq!(from_input(&["5 - 3"]), run(&["5 - 3"]));
    for alone in [&["-f", "-"][..], &["-"], &[]] {
        assert_eq!(from_input(alone), run(&["The mill grinds."]), "{alone:?}");
    }
    assert_eq!(from_input(&["-", "-f", path]), run(&["The mill grinds.\r\n\n\nThe mill grinds."]));
    // As it is, to the last line break.
    assert_eq!(run(&["--raw", "-f", path]), run(&["--raw", "The mill grinds.\n"]));
    assert_ne!(run(&["--raw", "-f", path]), run(&["--raw", "The mill grinds."]));
}

#[test]
fn files_that_are_no_prompt_are_told_with_the_reason() {
    let model = model();
    let refused = |more: &[&str], code, parts: &[&str]| {
        let errors = fails(&[&["run", "-m", &model], more].concat(), code);
        assert!(parts.iter().all(|part| errors.contains(part)), "{errors}");
    };
    refused(&["-f", "no/such.txt"], 1, &["the prompt cannot be read from no/such.txt", "No such file"]);
    refused(&["-f", &tests("goldens")], 1, &["cannot be read", "directory"]);
    for twice in [&["-f", "-", "-"][..], &["-f", "-", "Read", "-"], &["-", "and", "-"]] {
        refused(twice, 2, &["standard input can be read once"]);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    refused(&["-f", path], 2, &["the prompt is empty"]);
    std::fs::write(file.path(), b"The mill \xff grinds").unwrap();
    refused(&["-f", path], 1, &[path, "UTF-8", "byte 9"]);
    let (code, _, errors) = fed(&["run", "-m", &model], b"\xff");
    assert_eq!(code, Some(1));
    assert!(errors.contains("standard input is no text in UTF-8: its byte 0"), "{errors}");
}

/// Text in a pipe that nothing reads is told of, and is not waited for.
#[cfg(unix)]
#[test]
fn input_that_is_no_part_of_the_prompt_is_told() {
    let model = model();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "The mill grinds.\n").unwrap();
    let path = file.path().to_str().unwrap();
    let notes = |more: &[&str], input: Stdio| {
        let args = [&["run", "-m", &model, "-n", "2"], more].concat();
        let output = program().args(args).stdin(input).output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{more:?}: {notes}");
        notes
    };
    // Both ends stay open here while the program runs.
    let piped = |more: &[&str], text: &str| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        notes(more, reader.into())
    };
    let unread = "standard input has text that is no part of the prompt";
    for more in [&["Summarise:"][..], &["-f", path], &["-f", path, "Summarise:"]] {
        assert_eq!(piped(more, "of a pipe\n").matches(unread).count(), 1, "{more:?}");
        assert!(notes(more, std::fs::File::open(path).unwrap().into()).contains(unread), "{more:?}");
        assert!(
            !piped(more, "").contains(unread) && !notes(more, Stdio::null()).contains(unread),
            "{more:?}"
        );
    }
    for more in [&["Summarise:", "-"][..], &["-"], &["-f", "-"], &[]] {
        let input = std::fs::File::open(path).unwrap();
        assert!(!notes(more, input.into()).contains(unread), "{more:?}");
    }
    // A dash that was meant as one.
    let notes = notes(&["5", "-", "3"], Stdio::null());
    assert!(notes.contains("which is empty") && notes.contains("quotation marks"), "{notes}");
}

const SAMPLING: [&str; 8] = ["--temperature", "1.5", "--seed", "3", "-n", "6", "--ignore-eos", "--raw"];

#[test]
fn json_has_all_there_is_to_an_answer() {
    let model = model();
    let args = [&["run", "-m", &model][..], &SAMPLING, &["Hello"]].concat();
    let text = ok(&args);
    let answer: Value = serde_json::from_str(&ok(&[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!(answer["text"].as_str().unwrap().to_owned() + "\n", text);
    assert_eq!(answer["finish_reason"], "max_tokens");
    assert_eq!(answer["generated_tokens"], 6);
    assert_eq!(answer["ids"].as_array().unwrap().len(), 6);
    assert_eq!(answer["prompt_tokens"], tokenize(&model, "Hello").len());
    assert_eq!(answer["seed"], 3);
    let plan = ok(&["plan", "-m", &model]);
    assert!(plan.contains(answer["fingerprint"].as_str().unwrap()), "{answer}");
    for time in ["load", "first_token", "total"] {
        assert!(answer["seconds"][time].as_f64().unwrap() >= 0.0, "{answer}");
    }
    assert!(answer.get("logprobs").is_none());
    // Greedy answers have no seed, and reasons are told apart.
    let other = |more: &[&str]| -> Value {
        let args = [&["run", "-m", &model, "--json", "--ignore-eos", "--raw", "Hello"], more].concat();
        serde_json::from_str(&ok(&args)).unwrap()
    };
    let full = other(&["-c", &(tokenize(&model, "Hello").len() + 2).to_string()]);
    assert_eq!((&full["finish_reason"], &full["seed"]), (&"context_full".into(), &Value::Null));
    let whole = other(&["-n", "8"])["text"].as_str().unwrap().to_owned();
    let last = whole.chars().last().unwrap().to_string();
    let stopped = other(&["-n", "8", "--stop", &last, "--stop", "no such text"]);
    assert_eq!((&stopped["finish_reason"], &stopped["stop_index"]), (&"stop_string".into(), &0.into()));
}

#[test]
fn json_lines_are_the_pieces_and_then_the_whole() {
    let model = model();
    let args = [&["run", "-m", &model][..], &SAMPLING, &["Hello", "--logprobs", "2"]].concat();
    let lines = ok(&[&args[..], &["--json-lines"]].concat());
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (last, pieces) = lines.split_last().unwrap();
    assert!(pieces.iter().all(|p| p.get("finish_reason").is_none()) && pieces.len() > 1);
    let text: String = pieces.iter().map(|p| p["text"].as_str().unwrap()).collect();
    assert_eq!(text, last["text"].as_str().unwrap());
    let joined = |key: &str| -> Vec<Value> {
        pieces.iter().flat_map(|p| p[key].as_array().unwrap().clone()).collect()
    };
    let all = last["ids"].as_array().unwrap();
    // Tokens whose text is not complete are in the last object alone.
    assert!(
        all.starts_with(&joined("ids"))
            && last["logprobs"].as_array().unwrap().starts_with(&joined("logprobs"))
    );
    let mut whole: Value = serde_json::from_str(&ok(&[&args[..], &["--json"]].concat())).unwrap();
    whole["seconds"] = last["seconds"].clone();
    assert_eq!(*last, whole);
    let errors = fails(&["run", "-m", &model, "--json", "--json-lines", "x"], 2);
    assert!(errors.contains("--json-lines"), "{errors}");
}

#[test]
fn probabilities_are_those_of_the_logits_and_change_no_token() {
    let model = model();
    let args = [&["run", "-m", &model, "--precision", "exact", "--json"][..], &SAMPLING, &["Hello"]].concat();
    let plain: Value = serde_json::from_str(&ok(&args)).unwrap();
    let asked: Value = serde_json::from_str(&ok(&[&args[..], &["--probabilities", "3"]].concat())).unwrap();
    assert_eq!((&plain["ids"], &plain["text"]), (&asked["ids"], &asked["text"]));
    let mut ids = tokenize(&model, "Hello");
    for (token, id) in asked["logprobs"].as_array().unwrap().iter().zip(plain["ids"].as_array().unwrap()) {
        let row = &logits(&model, &ids, &["--rows", "last"])[0];
        let norm = row.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
        let near = |entry: &Value| {
            let want = f64::from(row[entry["id"].as_u64().unwrap() as usize]) - norm;
            assert!((entry["logprob"].as_f64().unwrap() - want).abs() < 1e-4, "{entry} and {want}");
        };
        assert_eq!(token["id"], *id);
        near(token);
        let top = token["top"].as_array().unwrap();
        assert_eq!((top.len(), top[0]["id"].as_u64().unwrap() as u32), (3, argmax(row)));
        top.iter().for_each(near);
        ids.push(id.as_u64().unwrap() as u32);
    }
    // For people: a line for each token.
    let args = [&["run", "-m", &model][..], &SAMPLING, &["Hello", "--logprobs", "2"]].concat();
    let lines = ok(&args);
    assert_eq!(lines.lines().count(), 6, "{lines}");
    assert!(lines.lines().all(|l| l.starts_with("0.") && l.matches('"').count() >= 6), "{lines}");
    let errors = fails(&["run", "-m", &model, "--logprobs", "9999", "x"], 2);
    assert!(errors.contains("--logprobs: is 9999, the vocabulary has 320 tokens"), "{errors}");
}

#[test]
fn inspect_shows_the_graph_as_text_picture_and_json() {
    let model = model();
    let graph = |form: &str| ok(&["inspect", "-m", &model, "--graph", form]);
    let text = graph("text");
    for part in [
        "before the layers",
        "layers 0-1 (2 alike)",
        "behind the layers",
        "blk.N.attn_q.weight (BF16 [64, 64])",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.contains("= logits") && !text.contains("hidden."), "{text}");
    assert!(graph("dot").starts_with("digraph model {"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(ok(&["inspect", "-m", &model, "--graph", "svg", "-o", path]), "");
    let svg = std::fs::read_to_string(path).unwrap();
    assert_eq!(svg, graph("svg"));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("attention"), "{svg}");
    let all: Value = serde_json::from_str(&ok(&["inspect", "-m", &model, "--json"])).unwrap();
    assert_eq!(all["graph"]["groups"][1]["layers"], serde_json::json!([0, 1]));
    assert_eq!(all["types"]["BF16"]["tensors"], 16);
    assert!(
        all["types"]["BF16"]["elements"].as_u64() == all["types"]["BF16"]["bytes"].as_u64().map(|b| b / 2)
    );
    let errors = fails(&["inspect", "-m", &tests("goldens-gguf/bert.gguf"), "--graph", "text"], 1);
    assert!(errors.contains("bert") && errors.contains("has no graph"), "{errors}");
    fails(&["inspect", "-m", &model, "-o", path], 2);
}

/// Layers of several kinds, with experts and recurrent states.
#[test]
fn graphs_of_other_families_are_drawn_too() {
    for (name, part) in [("gemma3_text", "window"), ("qwen3_moe", "expert_matmul"), ("lfm2", "ring.N")] {
        let path = tests(&format!("goldens-gguf/{name}.gguf"));
        let text = ok(&["inspect", "-m", &path, "--graph", "text"]);
        assert!(text.contains(part), "{name}: {text}");
        assert!(ok(&["inspect", "-m", &path, "--graph", "svg"]).contains("behind the layers"));
    }
}
