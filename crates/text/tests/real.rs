//! Real vocabularies. They are not in the repository: environment variables say where they lie, and the tests are ignored
//! unless they are asked for, as `cargo xtask full` does.

mod support;

use gristmill_text::{ChatTemplate, DateTime, EncodeOptions, RenderOptions, TemplateError, Tokenizer};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::{env, fs};
use support::{directory, gguf_vocab};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

/// `GRISTMILL_MODELS` holds GGUF files, `GRISTMILL_ANSWERS` the JSON files of the same names and `text.txt`.
#[test]
#[ignore = "needs GRISTMILL_MODELS and GRISTMILL_ANSWERS; cargo xtask full runs it"]
fn answers() {
    let (models, answers) = (directory("GRISTMILL_MODELS"), directory("GRISTMILL_ANSWERS"));
    let text = fs::read_to_string(answers.join("text.txt")).unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(&answers).unwrap() {
        let path = entry.unwrap().path();
        let (Some("json"), Some(stem)) = (path.extension().and_then(|e| e.to_str()), path.file_stem()) else {
            continue;
        };
        let answer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let name = stem.to_str().unwrap();
        let tokenizer = Tokenizer::from_gguf(gguf_vocab(&models.join(format!("{name}.gguf")))).unwrap();
        let ids = |value: &Value| -> Vec<u32> {
            value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
        };
        let expected = ids(&answer["text_ids"]);
        let got = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
        assert_eq!(got[..expected.len()], expected, "{name}: text");
        for prompt in answer["prompts"].as_array().unwrap() {
            let text = prompt["text"].as_str().unwrap();
            assert_eq!(
                tokenizer.encode(text, EncodeOptions::default()).unwrap(),
                ids(&prompt["ids"]),
                "{name}: {text}"
            );
            let greedy = ids(&prompt["greedy"]);
            assert_eq!(
                tokenizer.decode(&greedy, false),
                prompt["greedy_text"].as_str().unwrap(),
                "{name}: {text}"
            );
        }
        seen += 1;
    }
    assert!(seen > 0);
}

/// `GRISTMILL_VOCABS` holds `ggml-vocab-*.gguf` with `.inp` (texts between separator lines) and `.out` (ids, one line a
/// text, made without adding and without parsing special tokens).
#[test]
#[ignore = "needs GRISTMILL_VOCABS; cargo xtask full runs it"]
fn vocabularies() {
    let vocabs = directory("GRISTMILL_VOCABS");
    let mut failures = Vec::new();
    let mut seen = 0;
    for entry in fs::read_dir(&vocabs).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let (Ok(inputs), Ok(outputs)) = (
            fs::read_to_string(vocabs.join(format!("{name}.inp"))),
            fs::read_to_string(vocabs.join(format!("{name}.out"))),
        ) else {
            continue;
        };
        let vocab = gguf_vocab(&path);
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap_or_else(|error| panic!("{name}: {error}"));
        seen += 1;
        let texts = inputs.split("\n__ggml_vocab_test__\n");
        for (text, ids) in texts.zip(outputs.lines()) {
            let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let got = tokenizer.encode(text, PLAIN).unwrap();
            if got != ids {
                failures.push(format!("{name}: {text:?}\n  expected {ids:?}\n  got      {got:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
    assert!(seen >= 15, "only {seen} vocabularies");
}

/// `GRISTMILL_MODELS` holds GGUF files, `GRISTMILL_PYTHON` is an interpreter with transformers and gguf, which says the ids of
/// lines of many languages and scripts.
#[test]
#[ignore = "needs GRISTMILL_MODELS and GRISTMILL_PYTHON; cargo xtask full runs it"]
fn lines() {
    let models = directory("GRISTMILL_MODELS");
    let python = env::var_os("GRISTMILL_PYTHON").expect("GRISTMILL_PYTHON is not set: nothing can be tested");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/token_ids.py");
    let mut seen = 0;
    for entry in fs::read_dir(&models).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let answer = Command::new(&python).arg(&script).arg(&path).output().unwrap();
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        let lines: Vec<(String, Vec<u32>)> = serde_json::from_slice(&answer.stdout).unwrap();
        assert!(lines.len() >= 200, "only {} lines", lines.len());
        let tokenizer = Tokenizer::from_gguf(gguf_vocab(&path)).unwrap();
        let parsed = EncodeOptions { add_special: false, parse_special: true };
        for (line, ids) in lines {
            assert_eq!(tokenizer.encode(&line, parsed).unwrap(), ids, "{}: {line:?}", path.display());
        }
        seen += 1;
    }
    assert!(seen > 0);
}

/// 2026-03-07 15:04:05 UTC, as in `chat_templates.py`.
const NOW: i64 = 1_772_895_845;

/// Templates that mark text as safe and then add to it, which Python takes as a wish to escape; see COMPATIBILITY.md.
const ESCAPES: [&str; 1] = ["meetkai-functionary-medium-v3.1.jinja"];

fn unescaped(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#34;", "\"").replace("&#39;", "'");
    text.replace("&amp;", "&")
}

/// `GRISTMILL_TEMPLATES` holds `*.jinja`, `GRISTMILL_PYTHON` is an interpreter with Jinja2, which says what they render to.
#[test]
#[ignore = "needs GRISTMILL_TEMPLATES and GRISTMILL_PYTHON; cargo xtask full runs it"]
fn templates() {
    let folder = directory("GRISTMILL_TEMPLATES");
    let python = env::var_os("GRISTMILL_PYTHON").expect("GRISTMILL_PYTHON is not set: nothing can be tested");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/chat_templates.py");
    let answer = Command::new(python).arg(script).arg(&folder).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let cases: Vec<Value> = serde_json::from_slice(&answer.stdout).unwrap();
    let mut parsed = HashMap::new();
    // Of each template: cases that are equal, and those that have no answer because Python fails too.
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in &cases {
        let file = case["template"].as_str().unwrap();
        let template = parsed
            .entry(file)
            .or_insert_with(|| ChatTemplate::new(&fs::read_to_string(folder.join(file)).unwrap()));
        let template = template.as_ref().unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut extra = case["options"].as_object().unwrap().clone();
        let options = RenderOptions {
            tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
            add_generation_prompt: extra.remove("add_generation_prompt") == Some(true.into()),
            extra,
            bos_token: Some("<bos>".into()),
            eos_token: Some("<eos>".into()),
            now: Some(DateTime::from_unix(NOW, 0)),
        };
        let messages: Vec<_> = serde_json::from_value(case["messages"].clone()).unwrap();
        let got = template.render(&messages, &options);
        let [equal, failed] = counts.entry(file).or_default();
        let expected = match (case["text"].as_str(), case["raised"].as_str()) {
            (Some(text), _) => Ok(text.to_owned()),
            (_, Some(message)) => Err(TemplateError::Raised(message.to_owned())),
            // What Python cannot render has no right answer. It must end all the same.
            _ => {
                *failed += 1;
                continue;
            }
        };
        let expected = if ESCAPES.contains(&file) { expected.map(|text| unescaped(&text)) } else { expected };
        if got == expected {
            *equal += 1;
        } else {
            let (name, options) = (&case["name"], &case["options"]);
            failures.push(format!("{file}, {name} {options}\n  expected {expected:?}\n  got      {got:?}"));
        }
    }
    for (file, [equal, failed]) in &counts {
        println!("{file}: {equal} equal, {failed} that Python cannot render");
        assert!(*equal > 0 || !failures.is_empty(), "{file}: nothing was compared");
    }
    assert!(failures.is_empty(), "{} of {} differ\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(counts.len() >= 70, "only {} templates", counts.len());
}
