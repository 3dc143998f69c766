//! Files of tokenizers that say what nobody computes, contradict themselves, or make too much of a text: each is an error
//! that names the place, and none is taken for something else.

mod support;

use gristmill_text::{EncodeOptions, JsonFiles, Tokenizer, TokenizerError};
use serde_json::{Value, json};
use support::{gguf_vocab, goldens, goldens_gguf};

const OPTIONS: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

/// SentencePiece BPE, byte-level BPE, unigram and WordPiece.
const CASES: [&str; 5] = ["llama", "qwen2", "xlm_roberta", "t5", "bert"];

fn source(case: &str) -> Value {
    serde_json::from_slice(&std::fs::read(goldens().join(case).join("tokenizer.json")).unwrap()).unwrap()
}

fn open(source: &Value) -> Result<Tokenizer, TokenizerError> {
    let tokenizer = serde_json::to_vec(source).unwrap();
    Tokenizer::from_json(JsonFiles { tokenizer: &tokenizer, ..JsonFiles::default() })
}

/// Opens a golden's file with a value at a place set to another.
fn changed(case: &str, place: &str, value: Value) -> Result<Tokenizer, TokenizerError> {
    let mut source = source(case);
    let (parent, key) = place.rsplit_once('/').unwrap();
    match source.pointer_mut(parent).unwrap_or_else(|| panic!("{case} has no {parent}")) {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        parent => parent[key] = value,
    }
    open(&source)
}

/// The message, which must name each of the words.
fn refused(result: Result<Tokenizer, TokenizerError>, words: &[&str]) {
    let message = result.expect_err(&format!("accepted: {words:?}")).to_string();
    assert!(message.starts_with("tokenizer.json: "), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for case in ["llama", "qwen2"] {
        for value in [json!(0.5), json!(1), json!(1e-9), json!("0"), json!([0])] {
            refused(changed(case, "/model/dropout", value), &["model.dropout"]);
        }
        for value in [json!(null), json!(0), json!(0.0)] {
            changed(case, "/model/dropout", value).unwrap();
        }
        for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
            for value in
                [json!("##"), json!("é"), json!("</w>"), json!("\u{2581}".repeat(1000)), json!(false)]
            {
                refused(changed(case, &format!("/model/{key}"), value), &["model.", key]);
            }
            changed(case, &format!("/model/{key}"), json!("")).unwrap();
        }
    }
    // Without a type it is BPE all the same.
    let mut source = source("llama");
    source["model"].as_object_mut().unwrap().shift_remove("type");
    source["model"]["continuing_subword_prefix"] = "##".into();
    refused(open(&source), &["model.continuing_subword_prefix"]);
}

#[test]
fn unknown_types_are_refused_in_every_part() {
    for case in CASES {
        refused(changed(case, "/model/type", json!("Foo")), &["model.type", "Foo"]);
        for (part, steps) in [
            ("normalizer", "normalizers"),
            ("pre_tokenizer", "pretokenizers"),
            ("post_processor", "processors"),
            ("decoder", "decoders"),
        ] {
            for odd in [json!({"type": "Foo"}), json!({"type": 1}), json!({}), json!("NFC"), json!([])] {
                refused(changed(case, &format!("/{part}"), odd.clone()), &[part, "not known"]);
                let sequence = json!({"type": "Sequence", steps: [{"type": "Sequence", steps: [odd]}]});
                refused(
                    changed(case, &format!("/{part}"), sequence),
                    &[part, &format!("{steps}[0].{steps}[0]")],
                );
            }
            let sequence = json!({"type": "Sequence"});
            refused(changed(case, &format!("/{part}"), sequence), &[part, steps, "no list"]);
        }
    }
}

#[test]
fn wrong_values_are_refused_where_they_stand() {
    for case in CASES {
        for flag in ["lstrip", "rstrip", "single_word", "normalized", "special"] {
            for value in [json!([0]), json!(1), json!("true")] {
                refused(changed(case, &format!("/added_tokens/0/{flag}"), value), &["added_tokens[0]", flag]);
            }
        }
        for value in [json!(-1), json!(1.5), json!("0"), json!(u32::MAX as u64 + 1), json!(null)] {
            refused(changed(case, "/added_tokens/0/id", value), &["added token", "no id"]);
        }
        refused(changed(case, "/added_tokens/0/content", json!(1)), &["added_tokens[0]"]);
        refused(changed(case, "/added_tokens", json!({})), &["added_tokens"]);
        for flag in ["byte_fallback", "fuse_unk", "ignore_merges"] {
            refused(changed(case, &format!("/model/{flag}"), json!([0])), &["model.", flag]);
        }
    }
    let steps = [
        ("pre_tokenizer", json!({"type": "ByteLevel", "add_prefix_space": 0}), "add_prefix_space"),
        ("pre_tokenizer", json!({"type": "ByteLevel", "use_regex": "no"}), "use_regex"),
        ("pre_tokenizer", json!({"type": "Digits", "individual_digits": 1}), "individual_digits"),
        ("pre_tokenizer", json!({"type": "Metaspace", "replacement": 1}), "replacement"),
        ("pre_tokenizer", json!({"type": "Metaspace", "prepend_scheme": "often"}), "prepend_scheme"),
        ("pre_tokenizer", json!({"type": "Split", "pattern": " ", "behavior": "Isolated"}), "pattern"),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Odd"}),
            "behavior",
        ),
        ("normalizer", json!({"type": "Replace", "pattern": {}, "content": ""}), "pattern"),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": "a"}, "content": 1}), "content"),
        ("normalizer", json!({"type": "Prepend", "prepend": []}), "prepend"),
        ("normalizer", json!({"type": "BertNormalizer", "clean_text": 1}), "clean_text"),
    ];
    for (part, step, field) in steps {
        for case in CASES {
            refused(changed(case, &format!("/{part}"), step.clone()), &[part, field]);
        }
    }
}

#[test]
fn ids_and_texts_that_collide_are_refused_by_name() {
    for case in CASES {
        let good = source(case);
        let added = good["added_tokens"].as_array().unwrap().len() - 1;
        let name = good["added_tokens"][added]["content"].as_str().unwrap();
        refused(changed(case, &format!("/added_tokens/{added}/id"), json!(5)), &[name, "id 5"]);
        refused(changed(case, &format!("/added_tokens/{added}/id"), json!(4_000_000)), &[name, "4000000"]);
    }
    for case in ["llama", "qwen2", "bert"] {
        let mut source = source(case);
        let vocab = source["model"]["vocab"].as_object_mut().unwrap();
        vocab.insert("one more".into(), json!(20));
        refused(open(&source), &["`one more`", "id 20"]);
    }
    // What a post-processor adds must be there.
    let template = json!({
        "type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [99_999], "tokens": ["<s>"]}},
    });
    let pair = json!({"type": "BertProcessing", "sep": ["[SEP]", 99_999], "cls": ["[CLS]", 1]});
    for odd in [template, pair] {
        for case in CASES {
            refused(changed(case, "/post_processor", odd.clone()), &["post_processor", "99999"]);
            let sequence = json!({"type": "Sequence", "processors": [odd]});
            refused(changed(case, "/post_processor", sequence), &["post_processor", "99999"]);
        }
    }
}

#[test]
fn merges_of_what_is_not_there_are_refused_by_number() {
    for case in ["llama", "qwen2"] {
        for merge in
            [json!(["a", "no such token"]), json!("b nosuchtoken"), json!(["a"]), json!(["a", 1]), json!("a")]
        {
            refused(changed(case, "/model/merges/3", merge), &["merge 3"]);
        }
        refused(changed(case, "/model/merges", json!({})), &["model.merges"]);
        // Both are there and what they make is not: longer than any token.
        let mut source = source(case);
        let vocab = source["model"]["vocab"].as_object().unwrap();
        let longest = vocab.keys().max_by_key(|token| token.len()).unwrap().clone();
        source["model"]["merges"][0] = json!([longest.clone(), longest]);
        refused(open(&source), &["merge 0", "which there is not"]);
    }
}

/// They are for batches.
#[test]
fn truncation_and_padding_change_nothing() {
    for case in CASES {
        let plain = open(&source(case)).unwrap().encode("a longer text", OPTIONS).unwrap();
        let mut source = source(case);
        source["truncation"] =
            json!({"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
        source["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_id": 0, "pad_type_id": 0,
            "pad_token": "<pad>", "pad_to_multiple_of": null});
        assert_eq!(open(&source).unwrap().encode("a longer text", OPTIONS).unwrap(), plain, "{case}");
    }
}

/// A table of replacements with a long one for `a`.
fn charsmap(with: usize) -> Vec<u8> {
    let mut units = vec![0u32; 1024];
    // The children of the root lie at 256, those of `a` at 512.
    units[0] = 256 << 10;
    let a = 256 ^ usize::from(b'a');
    units[a] = u32::from(b'a') | 1 << 8 | ((a ^ 512) as u32) << 10;
    units[512] = 1 << 31;
    let units: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    [&(units.len() as u32).to_le_bytes()[..], &units, &vec![b'a'; with], b"\0"].concat()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letters = |chunk: &[u8]| {
        let bits =
            chunk.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        let text: String =
            (0..=chunk.len()).map(|at| LETTERS[(bits >> (18 - 6 * at)) as usize & 63] as char).collect();
        text + &"=".repeat(3 - chunk.len())
    };
    bytes.chunks(3).map(letters).collect()
}

/// Steps that make much of a text, alone or chained, are stopped before they fill the memory; the text itself may be long.
#[test]
fn normalisers_that_grow_are_stopped() {
    let replace =
        |with: usize| json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(with)});
    let regex = |pattern: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "a".repeat(5000)});
    let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "  ".repeat(5000)});
    let table = json!({"type": "Precompiled", "precompiled_charsmap": base64(&charsmap(5000))});
    let small_table = json!({"type": "Precompiled", "precompiled_charsmap": base64(&charsmap(10))});
    let chains = [
        ("Replace", vec![replace(10); 20]),
        ("Replace", vec![replace(5000)]),
        ("Replace", vec![regex("a")]),
        ("Replace", vec![regex("")]),
        ("Replace", vec![regex("(?=a)")]),
        ("Replace", vec![spaces; 3]),
        ("Prepend", vec![json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)})]),
        ("ByteLevel", vec![json!({"type": "ByteLevel"}); 40]),
        ("Precompiled", vec![table]),
        ("Precompiled", vec![small_table; 20]),
    ];
    for (kind, chain) in chains {
        let nested = json!({"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": chain}]});
        let flat = json!({"type": "Sequence", "normalizers": chain});
        for case in CASES {
            for normalizer in [&flat, &nested] {
                let tokenizer = changed(case, "/normalizer", normalizer.clone());
                let tokenizer = tokenizer.unwrap_or_else(|e| panic!("{case}: {kind}: {e}"));
                let text = "é  a".repeat(3000);
                let Err(error) = tokenizer.encode(&text, OPTIONS) else { panic!("{case}: {kind}: taken") };
                let TokenizerError::Grows { step, bytes, limit } = &error else { panic!("{case}: {error}") };
                assert!(
                    step.starts_with(kind) && bytes <= &text.len() && limit / 40 < text.len(),
                    "{case}: {error}"
                );
            }
        }
    }
    let mut vocab = gguf_vocab(&goldens_gguf().join("t5.gguf"));
    vocab.charsmap = charsmap(5000);
    let error = Tokenizer::from_gguf(vocab).unwrap().encode(&"a".repeat(1000), OPTIONS).unwrap_err();
    assert!(matches!(error, TokenizerError::Grows { .. }), "{error}");
}

/// What real files ask for is far from the bound, with the characters that become longest.
#[test]
fn what_becomes_long_in_unicode_is_taken() {
    let steps = json!([{"type": "NFKD"}, {"type": "Lowercase"}, {"type": "NFC"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]);
    for case in CASES {
        let tokenizer =
            changed(case, "/normalizer", json!({"type": "Sequence", "normalizers": steps})).unwrap();
        for unit in ["\u{fdfa}", "\u{390}", "\u{1d160}", " ", "İ"] {
            tokenizer.encode(&unit.repeat(10_000), OPTIONS).unwrap_or_else(|e| panic!("{case}: {unit}: {e}"));
        }
    }
}
