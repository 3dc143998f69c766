//! The common shape of `tokenizer.json`, byte-level BPE, read into the same code that serves GGUF files.
//!
//! The regular expressions of the `tokenizers` crate give up without a word when their stack is full, as on a megabyte
//! of spaces, and the rest of the text is then not split. Ours cannot, so every file they can express goes this way.

use crate::bpe::Bpe;
use crate::pre_tokenize::{GPT2_PATTERN, PreTokenizer};
use crate::tokenizer::Around;
use crate::vocab::Vocab;
use serde_json::Value;
use std::borrow::Cow;

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
    if !added_tokens_are_plain(source, nfc)? {
        return None;
    }
    let around = around(&source["post_processor"])?;
    let patterns = patterns(&source["pre_tokenizer"])?;
    let pre = PreTokenizer::from_patterns(patterns, model["ignore_merges"] == true, nfc)?;
    let bpe = Bpe::new(vocab, raw, merges(model)?.into_iter(), pre).ok()?;
    // With every byte there, the unknown token is never used.
    (model["unk_token"].is_null() || bpe.has_all_bytes()).then_some((bpe, around))
}

/// Whether the added tokens are matched as they stand, without rules about what is around them. Where text is `changed` by
/// a normalizer, those that are looked for after the change are not.
pub(crate) fn added_tokens_are_plain(source: &Value, changed: bool) -> Option<bool> {
    let plain = |token: &Value| {
        let rules = ["single_word", "lstrip", "rstrip"].iter().any(|rule| token[rule] == true);
        let later = changed && token["normalized"] == true;
        !(rules || later)
    };
    Some(source["added_tokens"].as_array()?.iter().all(plain))
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
fn normalizer(value: &Value) -> Option<bool> {
    let steps = steps(value, "normalizers")?;
    steps.iter().all(|step| step["type"] == "NFC").then_some(!steps.is_empty())
}

fn patterns(value: &Value) -> Option<Vec<Cow<'_, str>>> {
    let mut patterns = Vec::new();
    let mut bytes = false;
    for step in steps(value, "pretokenizers")? {
        // Bytes come last.
        if std::mem::replace(&mut bytes, step["type"] == "ByteLevel") {
            return None;
        }
        match step["type"].as_str()? {
            "ByteLevel" if step["add_prefix_space"] != false => return None,
            "ByteLevel" if step["use_regex"] == false => {}
            "ByteLevel" => patterns.push(GPT2_PATTERN.into()),
            "Digits" if step["individual_digits"] == true => patterns.push(r"\p{N}".into()),
            "Digits" => patterns.push(r"\p{N}+".into()),
            "Split" if step["behavior"] == "Isolated" && step["invert"] != true => {
                patterns.push(step["pattern"]["Regex"].as_str()?.into());
            }
            _ => return None,
        }
    }
    bytes.then_some(patterns)
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
