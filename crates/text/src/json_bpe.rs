//! The common shape of `tokenizer.json`, byte-level BPE, read into the same code that serves GGUF files.
//!
//! The regular expressions of the `tokenizers` crate give up without a word when their stack is full, as on a megabyte
//! of spaces, and the rest of the text is then not split. Ours cannot, so every file they can express goes this way.

use crate::bpe::Bpe;
use crate::families::GPT2_PATTERN;
use crate::pre_tokenize::{JsonStage, PreTokenizer};
use crate::tokenizer::Around;
use crate::vocab::{Rules, Vocab};
use serde_json::Value;

/// The tokenizer `source` describes, when it is byte-level BPE of a shape known here.
pub(crate) fn read(source: &Value, vocab: &Vocab, raw: &[Vec<u8>]) -> Option<(Bpe, Around)> {
    let model = &source["model"];
    let absent = |key: &str| model[key].is_null() || model[key] == "" || model[key] == false;
    let plain = ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"];
    if model["type"] != "BPE"
        || !plain.iter().all(|key| absent(key))
        || source["decoder"]["type"] != "ByteLevel"
    {
        return None;
    }
    let nfc = normalizer(&source["normalizer"])?;
    let around = around(&source["post_processor"])?;
    let (stages, prefix_space) = stages(&source["pre_tokenizer"])?;
    let pre = PreTokenizer::from_json(stages, model["ignore_merges"] == true, nfc, prefix_space)?;
    let bpe = Bpe::new(vocab, raw, merges(model)?.into_iter(), pre).ok()?;
    // With every byte there, the unknown token is never used.
    (model["unk_token"].is_null() || bpe.has_all_bytes()).then_some((bpe, around))
}

/// The rules of an added token; tokens that are not special are looked for in normalised text unless told otherwise.
pub(crate) fn rules(token: &Value) -> Rules {
    let flag = |name: &str| token[name] == true;
    let normalized = token["normalized"].as_bool().unwrap_or(token["special"] != true);
    Rules { lstrip: flag("lstrip"), rstrip: flag("rstrip"), single_word: flag("single_word"), normalized }
}

/// The pairs of a list of merges, best first; old files write them as lines.
pub(crate) fn merges(model: &Value) -> Option<Vec<(&str, &str)>> {
    let pairs = model["merges"].as_array()?.iter().map(|merge| match merge {
        Value::String(line) => line.split_once(' '),
        pair => Some((pair[0].as_str()?, pair[1].as_str()?)),
    });
    pairs.collect()
}

/// The parts of a `Sequence` under `key`, or the one part there is.
pub(crate) fn steps<'v>(value: &'v Value, key: &str) -> Option<Vec<&'v Value>> {
    match value {
        Value::Null => Some(Vec::new()),
        value if value["type"] == "Sequence" => Some(value[key].as_array()?.iter().collect()),
        value => Some(vec![value]),
    }
}

/// Whether text is brought into normal form C.
pub(crate) fn normalizer(value: &Value) -> Option<bool> {
    let steps = steps(value, "normalizers")?;
    steps.iter().all(|step| step["type"] == "NFC").then_some(!steps.is_empty())
}

/// The passes, and whether a space is put in front.
pub(crate) fn stages(value: &Value) -> Option<(Vec<JsonStage<'_>>, bool)> {
    let steps = steps(value, "pretokenizers")?;
    let alone = steps.len() == 1;
    let (mut stages, mut bytes, mut prefix) = (Vec::new(), false, false);
    for step in steps {
        let mut add = |pattern, drop_between| stages.push(JsonStage { pattern, drop_between });
        // Bytes come last.
        if std::mem::replace(&mut bytes, step["type"] == "ByteLevel") {
            return None;
        }
        match step["type"].as_str()? {
            "ByteLevel" => {
                // Behind others it would put a space before each of their pieces.
                prefix = step["add_prefix_space"] != false;
                if prefix && !alone {
                    return None;
                }
                if step["use_regex"] != false {
                    add(GPT2_PATTERN, false);
                }
            }
            "Digits" if step["individual_digits"] == true => add(r"\p{N}", false),
            "Digits" => add(r"\p{N}+", false),
            "Split" => {
                let drop_between = match (step["behavior"].as_str()?, step["invert"] == true) {
                    ("Isolated", _) => false,
                    ("Removed", true) => true,
                    _ => return None,
                };
                add(step["pattern"]["Regex"].as_str()?, drop_between);
            }
            _ => return None,
        }
    }
    bytes.then_some((stages, prefix))
}

/// What a post-processor puts around a text.
pub(crate) fn around(value: &Value) -> Option<Around> {
    let mut around = Around::default();
    for step in steps(value, "processors")? {
        match step["type"].as_str()? {
            "ByteLevel" => {}
            "TemplateProcessing" => {
                let mut seen = false;
                for piece in step["single"].as_array()? {
                    let Some(name) = piece["SpecialToken"]["id"].as_str() else {
                        seen = true;
                        continue;
                    };
                    let side = if seen { &mut around.after } else { &mut around.before };
                    for id in step["special_tokens"][name]["ids"].as_array()? {
                        side.push(u32::try_from(id.as_u64()?).ok()?);
                    }
                }
            }
            _ => return None,
        }
    }
    Some(around)
}

#[cfg(test)]
mod tests {
    use crate::{EncodeOptions, JsonFiles, Tokenizer};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::path::Path;
    use std::sync::LazyLock;

    /// Ours and the crate's: with composed text or without, with a space put in front, with every rule of added tokens.
    static PAIRS: LazyLock<Vec<(Tokenizer, tokenizers::Tokenizer)>> = LazyLock::new(|| {
        let load = |(case, prefix): (&str, bool)| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(case);
            let mut source: Value =
                serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
            if prefix {
                source["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true});
            }
            let tokens = source["added_tokens"].as_array_mut().unwrap();
            // The crate numbers added tokens itself, from the size of the vocabulary on.
            let plain =
                tokenizers::Tokenizer::from_bytes(std::fs::read(folder.join("tokenizer.json")).unwrap());
            let next = plain.unwrap().get_vocab_size(true) as u64;
            let added = [
                ("<left>", true, false, false, false, true),
                ("<right>", false, true, false, false, true),
                ("<both>", true, true, false, true, false),
                ("word", false, false, true, true, false),
                ("<e\u{301}>", false, false, false, true, false),
                ("<given e\u{301}>", false, false, false, false, false),
                ("  ", false, false, false, false, false),
                ("<le", false, false, false, true, false),
            ];
            for (id, (content, lstrip, rstrip, single_word, normalized, special)) in (next..).zip(added) {
                tokens.push(json!({
                    "id": id, "content": content, "lstrip": lstrip, "rstrip": rstrip, "single_word": single_word,
                    "normalized": normalized, "special": special,
                }));
            }
            let bytes = serde_json::to_vec(&source).unwrap();
            let ours = Tokenizer::from_json(JsonFiles { tokenizer: &bytes, ..JsonFiles::default() }).unwrap();
            assert!(format!("{ours:?}").contains("byte-level"), "{case}: {ours:?}");
            (ours, tokenizers::Tokenizer::from_bytes(&bytes).unwrap())
        };
        [("gpt2", false), ("gpt2", true), ("qwen2", false), ("lfm2", false)].map(load).into()
    });

    proptest! {
        #[test]
        fn ids_are_those_of_the_crate(
            parts in prop::collection::vec(
                "<left>|<right>|<both>|word|<le|<e\u{301}>|<é>|<given e\u{301}>|<given é>| |  |\n|e|\u{301}|_|[a-z]|\\PC|<\\|im_end\\|>",
                0..24,
            ),
        ) {
            let text = parts.concat();
            for (ours, theirs) in PAIRS.iter() {
                let options = EncodeOptions { add_special: false, parse_special: true };
                let theirs = theirs.encode_fast(text.as_str(), false).unwrap();
                prop_assert_eq!(&ours.encode(&text, options).unwrap(), theirs.get_ids(), "{:?}", text);
            }
        }
    }
}
