//! Every golden tokenizer, as tokenizer.json and as GGUF, against the ids and texts transformers gives.

mod support;

use gristmill_text::{Detokenizer, EncodeOptions, JsonFiles, Tokenizer};
use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{gguf_vocab, goldens, goldens_gguf};

fn json_tokenizer(case: &Path) -> Tokenizer {
    let read = |name: &str| fs::read(case.join(name)).ok();
    let (tokenizer, tokenizer_config, config) =
        (read("tokenizer.json").unwrap(), read("tokenizer_config.json"), read("config.json"));
    let files = JsonFiles {
        tokenizer: &tokenizer,
        tokenizer_config: tokenizer_config.as_deref(),
        config: config.as_deref(),
        ..JsonFiles::default()
    };
    Tokenizer::from_json(files).unwrap_or_else(|e| panic!("{}: {e}", case.display()))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Checks the samples that `said` accepts.
fn check(name: &str, tokenizer: &Tokenizer, expected: &Value, said: impl Fn(&str) -> bool) {
    for sample in expected["samples"].as_array().unwrap() {
        let text = sample["text"].as_str().unwrap();
        if !said(text) {
            continue;
        }
        let encode =
            |add_special| tokenizer.encode(text, EncodeOptions { add_special, parse_special: true }).unwrap();
        assert_eq!(encode(false), ids(&sample["ids"]), "{name}: {text:?}");
        assert_eq!(encode(true), ids(&sample["ids_with_special"]), "{name}: {text:?} with special tokens");
        let decoded = sample["decoded"].as_str().unwrap();
        assert_eq!(tokenizer.decode(&encode(false), false), decoded, "{name}: decoding {text:?}");
        let mut stream = Detokenizer::new(tokenizer, false);
        let mut streamed = String::new();
        for id in encode(false) {
            streamed.push_str(stream.push(id));
        }
        streamed.push_str(stream.finish());
        if expected["family"] != "wordpiece" {
            assert_eq!(streamed, decoded, "{name}: streaming {text:?}");
        }
    }
}

fn cases(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn expected(case: &str) -> Option<Value> {
    let bytes = fs::read(goldens().join(case).join("tokenizer_expected.json")).ok()?;
    Some(serde_json::from_slice(&bytes).unwrap())
}

#[test]
fn tokenizer_json() {
    let mut seen = 0;
    for case in cases(&goldens()) {
        if let Some(expected) = expected(&case) {
            check(&case, &json_tokenizer(&goldens().join(&case)), &expected, |_| true);
            seen += 1;
        }
    }
    assert!(seen >= 70, "only {seen} cases");
}

#[test]
fn gguf() {
    let mut seen = 0;
    for file in cases(&goldens_gguf()) {
        let Some(case) = file.strip_suffix(".gguf") else { continue };
        let vocab = gguf_vocab(&goldens_gguf().join(&file));
        // The goldens of unigram models normalise text in a way for which GGUF has no key.
        let silent = vocab.model == "t5" && vocab.charsmap.is_empty();
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap_or_else(|e| panic!("{case}: {e}"));
        let said = |text: &str| !silent || unicode_normalization::is_nfkc(text);
        check(case, &tokenizer, &expected(case).unwrap(), said);
        seen += 1;
    }
    assert!(seen >= 70, "only {seen} cases");
}
