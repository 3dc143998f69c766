//! Tokenizers of folders, said in the keys of GGUF files, give the same ids.

use std::path::PathBuf;

use gristmill_text::{EncodeOptions, GgufVocab, JsonFiles, Tokenizer, TokenizerError};
use serde_json::{Value, json};

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

fn files(case: &str) -> [Vec<u8>; 3] {
    let read = |name: &str| std::fs::read(goldens().join(case).join(name)).unwrap();
    [read("tokenizer.json"), read("tokenizer_config.json"), read("config.json")]
}

fn converted(files: &[Vec<u8>; 3], size: usize) -> Result<(Tokenizer, Tokenizer), TokenizerError> {
    let files = JsonFiles {
        tokenizer: &files[0],
        tokenizer_config: Some(&files[1]),
        config: Some(&files[2]),
        ..JsonFiles::default()
    };
    Ok((Tokenizer::from_json(files)?, Tokenizer::from_gguf(GgufVocab::from_json(files, size)?)?))
}

#[test]
fn ids_are_those_of_the_folder() {
    for case in ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "lfm2", "gpt2"] {
        let files = files(case);
        let expected = std::fs::read(goldens().join(case).join("tokenizer_expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let (json, gguf) = converted(&files, 400).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(gguf.vocab_size(), 400);
        let mut texts: Vec<String> = vec!["the quick brown fox".into(), " over  the lazy dog's 42\n".into()];
        fn strings(value: &Value, into: &mut Vec<String>) {
            match value {
                Value::String(text) => into.push(text.clone()),
                Value::Array(all) => all.iter().for_each(|v| strings(v, into)),
                Value::Object(all) => all.values().for_each(|v| strings(v, into)),
                _ => {}
            }
        }
        strings(&expected, &mut texts);
        assert!(texts.len() > 5, "{case}");
        for text in texts {
            for add_special in [false, true] {
                let options = EncodeOptions { add_special, parse_special: true };
                assert_eq!(json.encode(&text, options), gguf.encode(&text, options), "{case} {text:?}");
            }
        }
        assert_eq!(json.special().ends, gguf.special().ends, "{case}");
        assert_eq!(
            (json.special().bos, json.special().padding),
            (gguf.special().bos, gguf.special().padding)
        );
        let problem = converted(&files, 10).err().unwrap().to_string();
        assert!(problem.contains("beyond the 10"), "{problem}");
    }
}

/// A golden's files, edited.
fn edited(case: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut files = files(case);
    let mut json: Value = serde_json::from_slice(&files[0]).unwrap();
    edit(&mut json);
    files[0] = serde_json::to_vec(&json).unwrap();
    converted(&files, 400).err().map_or_else(String::new, |e| e.to_string())
}

#[test]
fn what_a_file_cannot_say_is_refused_by_name() {
    let around = |ids: &[u32]| {
        let tokens: Vec<Value> =
            ids.iter().map(|id| json!({ "SpecialToken": { "id": id.to_string(), "type_id": 0 } })).collect();
        let single = [tokens, vec![json!({ "Sequence": { "id": "A", "type_id": 0 } })]].concat();
        let special: serde_json::Map<String, Value> = ids
            .iter()
            .map(|id| {
                (id.to_string(), json!({ "id": id.to_string(), "ids": [id], "tokens": [id.to_string()] }))
            })
            .collect();
        json!({ "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special })
    };
    assert_eq!(edited("qwen2", |t| t["post_processor"] = around(&[1])), "");
    let told = edited("qwen2", |t| t["post_processor"] = around(&[1, 2]));
    assert!(told.contains("[1, 2]") && told.contains("cannot be converted"), "{told}");
    let told =
        edited("qwen2", |t| t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("[a-f]+|."));
    assert!(told.contains("[a-f]+"), "{told}");
    let told = edited("qwen2", |t| t["added_tokens"][3]["lstrip"] = json!(true));
    assert!(told.contains("splits \"a <|im_start|> b"), "{told}");
    // The same of one behind many others.
    let told = edited("qwen2", |t| {
        let added = t["added_tokens"].as_array_mut().unwrap();
        let first = added[3].clone();
        added.extend((0..600).map(|_| first.clone()));
        added.push(json!({ "id": 390, "content": "<|last|>", "special": true, "rstrip": true }));
    });
    assert!(told.contains("splits \"a <|last|> b"), "{told}");
    let told = edited("llama", |t| {
        t["decoder"]["decoders"].as_array_mut().unwrap().retain(|d| d["type"] != "Strip")
    });
    assert!(told.contains("decodes to \"  \" what would be \" \""), "{told}");
    // A merge that is not there, of tokens that together are one.
    let told = edited("llama", |t| _ = t["model"]["merges"].as_array_mut().unwrap().remove(0));
    assert!(told.contains("cannot be converted"), "{told}");
}
