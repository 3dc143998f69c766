//! Awkward input: long runs, arbitrary text and ids. Nothing panics, nothing is lost, time stays near linear.

mod support;

use gristmill_text::{Detokenizer, EncodeOptions, GgufVocab, JsonFiles, Tokenizer, TokenizerError};
use proptest::prelude::*;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use support::{gguf_vocab, goldens, goldens_gguf};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

/// Byte-level BPE of three families, and SentencePiece without and with a space prefix.
const CASES: [&str; 5] = ["gpt2", "qwen2", "lfm2", "gemma3_text", "llama"];

static GGUF: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let load =
        |case: &&str| Tokenizer::from_gguf(gguf_vocab(&goldens_gguf().join(format!("{case}.gguf")))).unwrap();
    CASES.iter().map(load).collect()
});

static JSON: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let load = |case: &&str| {
        let read = |name: &str| std::fs::read(goldens().join(case).join(name)).unwrap();
        let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
        let files =
            JsonFiles { tokenizer: &tokenizer, tokenizer_config: Some(&config), ..JsonFiles::default() };
        Tokenizer::from_json(files).unwrap()
    };
    CASES.iter().map(load).collect()
});

fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = Detokenizer::new(tokenizer, skip_special);
    let mut text = String::new();
    for &id in ids {
        text.push_str(stream.push(id));
    }
    text.push_str(stream.finish());
    text
}

/// A byte-level vocabulary with the tokens of runs of 2, 4, .. 256 of a few characters, and of mixed pairs; none of the
/// goldens' small ones merges long runs.
fn runs_vocab(model: &str, pre: Option<&str>) -> GgufVocab {
    let mut vocab =
        gguf_vocab(&goldens_gguf().join(if model == "gpt2" { "gpt2.gguf" } else { "gemma.gguf" }));
    (vocab.model, vocab.pre) = (model.to_owned(), pre.map(str::to_owned));
    (vocab.merges, vocab.scores) = (vec![], vec![-1e6; vocab.tokens.len()]);
    let mut add = |left: &str, right: &str| {
        for token in [left.to_owned(), right.to_owned(), format!("{left}{right}")] {
            if !vocab.tokens.iter().any(|t| t == token.as_bytes()) {
                vocab.tokens.push(token.into_bytes());
                vocab.token_types.push(1);
                vocab.scores.push(-(vocab.scores.len() as f32));
            }
        }
        vocab.merges.push(format!("{left} {right}"));
    };
    let mut units: Vec<String> = ["a", "b", "0"].map(str::to_owned).into();
    if model == "gpt2" {
        // The alphabet's space, line feed and the four bytes of U+1F642.
        let emoji = ["ð", "Ł", "Ļ", "Ĥ"];
        units.extend(["Ġ".to_owned(), "Ċ".to_owned()]);
        add(emoji[0], emoji[1]);
        add(&emoji[..2].concat(), emoji[2]);
        add(&emoji[..3].concat(), emoji[3]);
        units.push(emoji.concat());
        add("Ġ", "a");
    } else {
        units.push("\u{2581}".to_owned());
        add("\u{2581}", "a");
    }
    add("a", "b");
    units.push("ab".to_owned());
    for unit in units {
        for doublings in 0..8 {
            let half = unit.repeat(1 << doublings);
            add(&half, &half);
        }
    }
    vocab
}

/// One of each family of pre-tokenizers.
const PRES: [&str; 36] = [
    "default",
    "gpt-2",
    "mpt",
    "smollm",
    "command-r",
    "llama-bpe",
    "jais-2",
    "minicpm5",
    "qwen2",
    "stablelm2",
    "laguna",
    "qwen35",
    "ufakzeka",
    "seed-coder",
    "bailingmoe",
    "exaone-moe",
    "falcon",
    "chameleon",
    "bloom",
    "viking",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "spark2_5",
    "afmoe",
    "youtu",
    "tekken",
    "gpt-4o",
    "granite-embed-multi-97m",
    "tiny_aya",
    "superbpe",
    "kimi-k2",
    "jina-v2-es",
    "modern-bert",
    "glm4",
    "dbrx",
];

/// A vocabulary of RWKV's form with runs, a mark that almost ends one, and every byte.
fn rwkv_vocab() -> GgufVocab {
    let mut tokens: Vec<Vec<u8>> = vec![b"<s>".to_vec()];
    tokens.extend((0..=255u8).map(|byte| format!("\\x{byte:02x}").into_bytes()));
    tokens.extend([
        b"aaaa".to_vec(),
        [&b"a".repeat(100)[..], b"!"].concat(),
        b"\\n\\n".to_vec(),
        b"\\xf0\\x9f".to_vec(),
    ]);
    let token_types = tokens.iter().enumerate().map(|(id, _)| if id == 0 { 3 } else { 1 }).collect();
    GgufVocab { model: "rwkv".into(), tokens, token_types, ..GgufVocab::default() }
}

/// Every kind of tokenizer.
struct OfKind {
    name: String,
    tokenizer: Tokenizer,
    /// Its ids give the text.
    lossless: bool,
}

fn every_kind() -> Vec<OfKind> {
    let mut kinds = Vec::new();
    let mut add = |name: String, vocab, lossless| {
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap_or_else(|e| panic!("{name}: {e}"));
        kinds.push(OfKind { name, tokenizer, lossless });
    };
    for pre in PRES {
        add(format!("gpt2 {pre}"), runs_vocab("gpt2", Some(pre)), true);
    }
    for model in ["llama", "gemma4"] {
        add(model.into(), runs_vocab(model, None), true);
    }
    for case in ["t5", "xlm_roberta", "bert"] {
        add(format!("GGUF of {case}"), gguf_vocab(&goldens_gguf().join(format!("{case}.gguf"))), false);
    }
    add("rwkv".into(), rwkv_vocab(), true);
    let words = runs_vocab("gpt2", Some("whitespace"));
    add("words".into(), GgufVocab { unknown: Some(0), ..words }, false);
    for case in ["lfm2", "llama", "gemma3_text", "xlm_roberta", "bert", "t5"] {
        let tokenizer = std::fs::read(goldens().join(case).join("tokenizer.json")).unwrap();
        let files = JsonFiles { tokenizer: &tokenizer, ..JsonFiles::default() };
        let (name, tokenizer) = (format!("tokenizer.json of {case}"), Tokenizer::from_json(files).unwrap());
        kinds.push(OfKind { name, tokenizer, lossless: false });
    }
    kinds
}

/// Time this thread has had a processor; where the system does not tell, time.
fn used(start: Instant) -> Duration {
    let on_processor = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = on_processor.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// A megabyte of one thing takes less than a second, whatever the tokenizer and the thing. Families that differ in their
/// patterns alone get a quarter of both.
#[test]
fn long_runs() {
    let start = Instant::now();
    let mut slowest = (Duration::ZERO, String::new());
    for OfKind { name: kind, tokenizer, lossless } in every_kind() {
        let part = if kind.starts_with("gpt2") && kind != "gpt2 default" { 4 } else { 1 };
        for unit in ["a", "0", " ", "\n", "🙂", "e\u{301}", "\u{301}", "a ", " \n", "'", "漢", "１"] {
            let text = unit.repeat((1 << 20) / part / unit.len());
            let before = used(start);
            let ids = tokenizer.encode(&text, PLAIN).unwrap_or_else(|e| panic!("{kind}: {unit:?}: {e}"));
            let took = used(start) - before;
            assert!(
                took < Duration::from_secs(1) / part as u32,
                "{kind}: 1/{part} megabyte of {unit:?} took {took:?}"
            );
            slowest = slowest.max((took, format!("{kind}: {unit:?}")));
            // Composition would change marks without a letter.
            if lossless && !unit.contains('\u{301}') {
                assert!(stream(&tokenizer, &ids, true) == text, "{kind}: {unit:?} does not come back");
            }
        }
    }
    println!("the slowest: {slowest:?}");
}

/// Both readers give the same ids on long runs, on which the regular expressions of the `tokenizers` crate give up
/// silently.
#[test]
fn long_runs_are_split_like_short_ones() {
    let text = " ".repeat(1_100_000) + "x";
    let short = " ".repeat(1000) + "x";
    for tokenizer in [&GGUF[0], &JSON[0], &GGUF[2], &JSON[2]] {
        let (long, short) =
            (tokenizer.encode(&text, PLAIN).unwrap(), tokenizer.encode(&short, PLAIN).unwrap());
        assert_eq!(long[long.len() - 3..], short[short.len() - 3..], "{tokenizer:?}");
    }
}

#[test]
fn special_tokens_in_text() {
    let text = "a<|im_end|>b</s>";
    for tokenizer in GGUF.iter().chain(JSON.iter()) {
        let parsed = tokenizer.encode(text, PARSED).unwrap();
        assert!(parsed.contains(&4) && parsed.contains(&2), "{tokenizer:?}: {parsed:?}");
        let plain = tokenizer.encode(text, PLAIN).unwrap();
        assert!(!plain.iter().any(|&id| tokenizer.is_special(id)), "{tokenizer:?}: {plain:?}");
        assert_eq!(stream(tokenizer, &plain, true), text);
        assert_eq!(tokenizer.special().ends, [2, 4], "{tokenizer:?}");
    }
}

#[test]
fn special_tokens_are_added_as_the_file_says() {
    let mut vocab = gguf_vocab(&goldens_gguf().join("gpt2.gguf"));
    (vocab.add_bos, vocab.add_eos) = (Some(true), Some(true));
    let with = Tokenizer::from_gguf(vocab.clone()).unwrap().encode("a", EncodeOptions::default()).unwrap();
    assert_eq!((with[0], with[with.len() - 1]), (1, 2));
    // Llama 3 vocabularies add BOS unless told otherwise; GPT-2's do not.
    vocab.add_eos = None;
    for (pre, added) in [("gpt-2", false), ("llama-bpe", true)] {
        (vocab.add_bos, vocab.pre) = (None, Some(pre.into()));
        let tokenizer = Tokenizer::from_gguf(vocab.clone()).unwrap();
        assert_eq!(tokenizer.encode("a", EncodeOptions::default()).unwrap()[0] == 1, added, "{pre}");
    }
    (vocab.add_bos, vocab.bos) = (Some(true), None);
    assert!(matches!(Tokenizer::from_gguf(vocab), Err(TokenizerError::BadVocab(_))));
}

/// Vocabularies that are read by way of a `tokenizer.json` lose nothing of what the file says.
#[test]
fn plain_words_keep_what_the_file_says() {
    let tokens = ["<unk>", "a", "<first>", "<last>", "<turn>", "<message>"];
    let vocab = GgufVocab {
        model: "whitespace".into(),
        tokens: tokens.map(|text| text.as_bytes().to_vec()).into(),
        token_types: vec![2, 1, 3, 3, 3, 3],
        unknown: Some(0),
        bos: Some(2),
        eos: Some(3),
        eot: Some(4),
        eom: Some(5),
        chat_template: Some("one".into()),
        named_chat_templates: vec![("tool_use".into(), "two".into())],
        ..GgufVocab::default()
    };
    let tokenizer = Tokenizer::from_gguf(vocab.clone()).unwrap();
    assert_eq!(tokenizer.special().ends, [3, 4, 5]);
    assert_eq!(tokenizer.chat_template(), Some("one"));
    assert_eq!(tokenizer.chat_template_named("tool_use"), Some("two"));
    for (bos, eos, expected) in [
        (None, None, &[1, 1][..]),
        (Some(true), None, &[2, 1, 1]),
        (Some(false), Some(true), &[1, 1, 3]),
        (Some(true), Some(true), &[2, 1, 1, 3]),
    ] {
        let vocab = GgufVocab { add_bos: bos, add_eos: eos, ..vocab.clone() };
        let ids = Tokenizer::from_gguf(vocab).unwrap().encode("a a", EncodeOptions::default()).unwrap();
        assert_eq!(ids, expected);
    }
    let none = [
        GgufVocab { add_bos: Some(true), bos: None, ..vocab.clone() },
        GgufVocab { add_eos: Some(true), eos: None, ..vocab },
    ];
    for vocab in none {
        assert!(matches!(Tokenizer::from_gguf(vocab), Err(TokenizerError::BadVocab(_))));
    }
}

#[test]
fn bad_vocabularies_are_refused() {
    let good = gguf_vocab(&goldens_gguf().join("gpt2.gguf"));
    let spm = gguf_vocab(&goldens_gguf().join("llama.gguf"));
    let error = |change: &dyn Fn(&mut GgufVocab), vocab: &GgufVocab| {
        let mut vocab = vocab.clone();
        change(&mut vocab);
        Tokenizer::from_gguf(vocab).unwrap_err().to_string()
    };
    assert!(error(&|v| v.model = "plamo2".into(), &good).contains("plamo2"));
    assert!(error(&|v| v.pre = Some("odd-one".into()), &good).contains("odd-one"));
    assert!(error(&|v| v.pre = None, &good).contains("tokenizer.ggml.pre"));
    let ids: [fn(&mut GgufVocab) -> &mut Option<u32>; 6] = [
        |v| &mut v.bos,
        |v| &mut v.eos,
        |v| &mut v.eot,
        |v| &mut v.eom,
        |v| &mut v.unknown,
        |v| &mut v.padding,
    ];
    for (id, name) in ids.iter().zip(["bos", "eos", "eot", "eom", "unknown", "padding"]) {
        for beyond in [320, u32::MAX] {
            let message = error(&|v| *id(v) = Some(beyond), &good);
            assert!(message.contains(&format!("`tokenizer.ggml.{name}_token_id` is {beyond}")), "{message}");
            assert!(message.contains("below the size of the vocabulary, 320"), "{message}");
        }
    }
    assert!(error(&|v| v.merges.push("x".into()), &good).contains("merge 59"));
    assert!(error(&|v| v.merges.push("th qq".into()), &good).contains("not in the vocabulary"));
    assert!(error(&|v| v.merges.push("你 好".into()), &good).contains("byte-level"));
    assert!(error(&|v| v.token_types[7] = 9, &good).contains("token 7"));
    assert!(error(&|v| v.token_types.truncate(3), &good).contains("3 token types"));
    assert!(error(&|v| v.tokens.clear(), &good).contains("0 tokens"));
    assert!(error(&|v| v.scores.truncate(3), &spm).contains("3 scores"));
    assert!(error(&|v| v.scores[3] = f32::NAN, &spm).contains("token 3"));
    assert!(error(&|v| v.tokens[10] = b"<0xZZ>".to_vec(), &spm).contains("<0xZZ>"));
}

/// Ids of a folder's configurations that the model does not have; those that only the tokenizer lacks are left out.
#[test]
fn ids_beyond_the_model_are_refused() {
    let tokenizer = std::fs::read(goldens().join("qwen2/tokenizer.json")).unwrap();
    let open = |config: &str, generation: &str| {
        Tokenizer::from_json(JsonFiles {
            tokenizer: &tokenizer,
            config: Some(config.as_bytes()),
            generation_config: Some(generation.as_bytes()),
            ..JsonFiles::default()
        })
    };
    let refused = [
        (r#"{"vocab_size": 330, "eos_token_id": 330}"#, "{}", ["config.json", "eos_token_id", "330"]),
        (
            r#"{"vocab_size": 330, "eos_token_id": [2, 400]}"#,
            "{}",
            ["config.json", "eos_token_id", "[2,400]"],
        ),
        (r#"{"bos_token_id": -1}"#, "{}", ["config.json", "bos_token_id", "-1"]),
        (r#"{"eos_token_id": "NaN"}"#, "{}", ["config.json", "eos_token_id", "NaN"]),
        (r#"{"pad_token_id": 4294967295}"#, "{}", ["config.json", "pad_token_id", "4294967295"]),
        ("{}", r#"{"eos_token_id": [2, 9999]}"#, ["generation_config.json", "eos_token_id", "9999"]),
    ];
    for (config, generation, parts) in refused {
        let message = open(config, generation).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let config = r#"{"vocab_size": 400, "eos_token_id": [2, 399], "pad_token_id": -1}"#;
    let tokenizer = open(config, r#"{"eos_token_id": [3]}"#).unwrap();
    assert_eq!((tokenizer.special().eos, tokenizer.special().padding), (Some(2), None));
    let ends = &tokenizer.special().ends;
    assert!(ends.contains(&2) && ends.contains(&3) && !ends.contains(&399), "{ends:?}");
}

#[test]
fn text_without_a_token_is_an_error() {
    let mut vocab = gguf_vocab(&goldens_gguf().join("gpt2.gguf"));
    let at = vocab.tokens.iter().position(|token| token == b"Q").unwrap();
    vocab.tokens[at] = b"[hole]".to_vec();
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    assert_eq!(tokenizer.encode("aQ", PLAIN), Err(TokenizerError::NoToken { byte: b'Q' }));
    // Without byte tokens, SentencePiece writes a run of unknown characters as one unknown token.
    let mut vocab = gguf_vocab(&goldens_gguf().join("gemma.gguf"));
    for kind in vocab.token_types.iter_mut().filter(|kind| **kind == 6) {
        *kind = 5;
    }
    let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
    let ids = tokenizer.encode("the龍龍the", PLAIN).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == 0).count(), 1, "{ids:?}");
}

#[test]
fn broken_utf8_is_replaced_once_it_is_certain() {
    let tokenizer = &GGUF[3];
    let byte = |byte: u8| {
        (0..tokenizer.vocab_size() as u32)
            .find(|&id| tokenizer.token_bytes(id).unwrap().as_ref() == [byte])
            .unwrap()
    };
    let mut stream = Detokenizer::new(tokenizer, true);
    assert_eq!(stream.push(byte(0xE2)), "");
    assert_eq!(stream.push(byte(0x82)), "");
    assert_eq!(stream.push(byte(0xAC)), "€");
    assert_eq!(stream.push(byte(0xF0)), "");
    assert_eq!(stream.push(byte(b'a')), "\u{FFFD}a");
    assert_eq!(stream.push(byte(0xFF)), "\u{FFFD}");
    assert_eq!(stream.push(byte(0xE2)), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.finish(), "");
}

#[test]
fn first_space_is_dropped_only_at_the_start() {
    let tokenizer = &GGUF[4];
    let ids = tokenizer.encode("the house", PLAIN).unwrap();
    assert_eq!(tokenizer.decode(&ids, true), "the house");
    assert_eq!(tokenizer.decode(&[&[1], ids.as_slice()].concat(), true), "the house");
    let mut stream = Detokenizer::continuing(tokenizer, true);
    let text: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
    assert_eq!(text, " the house");
}

proptest! {
    #[test]
    fn text_comes_back(text in "\\PC{0,40}", spaces in "[ \t\r\n\u{a0}]{0,6}", more in ".{0,20}") {
        let text = format!("{text}{spaces}{more}");
        for (index, case) in CASES.iter().enumerate() {
            let ids = GGUF[index].encode(&text, PLAIN).unwrap();
            prop_assert_eq!(&ids, &JSON[index].encode(&text, PLAIN).unwrap(), "{}: {:?}", case, text);
            let back = stream(&GGUF[index], &ids, true);
            // Qwen's text is composed first; SentencePiece takes U+2581 for a space.
            if *case != "qwen2" && !text.contains('\u{2581}') {
                prop_assert_eq!(back, text.as_str(), "{}", case);
            }
        }
    }

    #[test]
    fn any_ids_stream_like_their_bytes(ids in prop::collection::vec(0u32..330, 0..60), skip_special: bool) {
        for tokenizer in GGUF.iter().chain(JSON.iter()) {
            let shown = |id: &&u32| !(skip_special && tokenizer.is_special(**id));
            let bytes: Vec<u8> = ids.iter().filter(shown).filter_map(|&id| tokenizer.token_bytes(id)).flat_map(|b| b.into_owned()).collect();
            let mut all = Detokenizer::continuing(tokenizer, skip_special);
            let mut text = String::new();
            for &id in &ids {
                text.push_str(all.push(id));
            }
            text.push_str(all.finish());
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(tokenizer.decode(&ids, skip_special), stream(tokenizer, &ids, skip_special));
        }
    }
}

#[test]
fn a_configuration_of_another_form_is_refused_by_name() {
    let tokenizer = std::fs::read(goldens().join("gpt2/tokenizer.json")).unwrap();
    let open = |config: &str| {
        let tokenizer_config = Some(config.as_bytes());
        Tokenizer::from_json(JsonFiles { tokenizer: &tokenizer, tokenizer_config, ..JsonFiles::default() })
    };
    for (config, key) in [
        (r#"{"add_bos_token": "true"}"#, "add_bos_token"),
        (r#"{"add_eos_token": 1}"#, "add_eos_token"),
        (r#"{"chat_template": 1}"#, "chat_template"),
        (r#"{"chat_template": {"default": "x"}}"#, "chat_template"),
        (
            r#"{"chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use"}]}"#,
            "chat_template",
        ),
    ] {
        let message = open(config).unwrap_err().to_string();
        assert!(
            message.starts_with("tokenizer_config.json: ") && message.contains(key),
            "{config}: {message}"
        );
    }
    let null = r#"{"add_bos_token": null, "add_eos_token": null, "chat_template": null}"#;
    assert_eq!(open(null).unwrap().chat_template(), None);
    let named = open(r#"{"chat_template": [{"name": "tool_use", "template": "x"}]}"#).unwrap();
    assert_eq!((named.chat_template(), named.chat_template_named("tool_use")), (None, Some("x")));
}

/// What the `tokenizers` crate panics on is an error like any other.
#[test]
fn senseless_files_are_errors() {
    let bert = std::fs::read_to_string(goldens().join("bert/tokenizer.json")).unwrap();
    let changes: [(&str, &str); 4] = [
        (r###""prefix": "##""###, r###""prefix": "\ud800##""###),
        (r#""unk_token": "[UNK]""#, r#""unk_token": "\udfff""#),
        (r#""max_input_chars_per_word": 100"#, r#""max_input_chars_per_word": -1"#),
        (r#""type": "BertNormalizer""#, r#""type": "Precompiled", "precompiled_charsmap": "AAQAAAA=""#),
    ];
    for (from, to) in changes {
        assert!(bert.contains(from), "{from}");
        let changed = bert.replace(from, to);
        let files = JsonFiles { tokenizer: changed.as_bytes(), ..JsonFiles::default() };
        assert!(Tokenizer::from_json(files).is_err(), "{to}");
    }
}
