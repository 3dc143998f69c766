//! Real vocabularies. They are not in the repository: environment variables say where they lie, and the tests are ignored
//! unless they are asked for, as `cargo xtask full` does.

mod support;

use gristmill_text::{EncodeOptions, Tokenizer};
use serde_json::Value;
use std::fs;
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
