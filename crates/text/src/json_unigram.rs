//! Unigram models of `tokenizer.json`, read into the same code that serves GGUF files: the `tokenizers` crate takes several
//! times as long, and walks tables of replacements without looking where.

use crate::TokenizerError;
use crate::charsmap::Charsmap;
use crate::json_bpe::{around, steps};
use crate::spm::{self, SPACE};
use crate::tokenizer::Around;
use crate::unigram::{self, Shape, Step, Unigram};
use crate::vocab::Vocab;
use serde_json::Value;

/// The tokenizer `source` describes, when it is a unigram model of a shape known here.
pub(crate) fn read(source: &Value, vocab: &Vocab, raw: &[Vec<u8>]) -> Option<(Unigram, Around)> {
    let model = &source["model"];
    let pieces = model["vocab"].as_array()?;
    if !(model["type"] == "Unigram" || model["type"].is_null()) {
        return None;
    }
    let normal = steps(&source["normalizer"], "normalizers")?.into_iter().map(step);
    let normal = normal.collect::<Option<Vec<_>>>()?;
    // Added tokens would have to be found in text that the steps have changed.
    if !normal.is_empty() && vocab.iter().any(|(_, token)| token.rules.normalized) {
        return None;
    }
    let shape = pre_tokenizer(&source["pre_tokenizer"], normal)?;
    let scores = pieces.iter().map(|piece| piece[1].as_f64()).collect::<Option<Vec<f64>>>()?;
    let unknown = match &model["unk_id"] {
        Value::Null => None,
        id => Some(u32::try_from(id.as_u64()?).ok().filter(|&id| (id as usize) < scores.len())?),
    };
    let byte = |(text, id): (&Vec<u8>, u32)| Some((spm::byte_token(0, text).ok()?, id));
    let bytes = match model["byte_fallback"] == true {
        true => Some(unigram::all_bytes(raw.iter().zip(0..).filter_map(byte))?),
        false => None,
    };
    let around = around(&source["post_processor"])?;
    Some((Unigram::new(vocab, raw, scores, unknown, bytes, shape).ok()?, around))
}

fn step(value: &Value) -> Option<Step> {
    Some(match value["type"].as_str()? {
        "Precompiled" => Step::Charsmap(charsmap(value["precompiled_charsmap"].as_str()?).ok()?),
        "NFC" => Step::Nfc,
        "NFD" => Step::Nfd,
        "NFKC" => Step::Nfkc,
        "NFKD" => Step::Nfkd,
        "Lowercase" => Step::Lowercase,
        "Strip" => Step::Strip(value["strip_left"] == true, value["strip_right"] == true),
        "Replace" => {
            let with = value["content"].as_str()?.to_owned();
            match (&value["pattern"]["Regex"], &value["pattern"]["String"]) {
                (Value::String(pattern), _) if pattern == " {2,}" => Step::Collapse(with),
                (_, Value::String(text)) if !text.is_empty() => Step::Replace(text.clone(), with),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn pre_tokenizer(value: &Value, normal: Vec<Step>) -> Option<Shape> {
    let steps = steps(value, "pretokenizers")?;
    let (split_white_space, metaspace) = match steps.as_slice() {
        [metaspace] => (false, *metaspace),
        [first, metaspace] if first["type"] == "WhitespaceSplit" => (true, *metaspace),
        _ => return None,
    };
    if metaspace["type"] != "Metaspace" || metaspace["replacement"] != SPACE {
        return None;
    }
    let space_prefix = match (metaspace["prepend_scheme"].as_str(), &metaspace["add_prefix_space"]) {
        (Some("always"), _) => true,
        (None, flag) => *flag != false,
        (Some("never"), _) => false,
        _ => return None,
    };
    Some(Shape { steps: normal, split_white_space, space_prefix, split_spaces: metaspace["split"] != false })
}

/// A table of replacements.
pub(crate) fn charsmap(base64: &str) -> Result<Charsmap, TokenizerError> {
    let bytes = decode_base64(base64).ok_or_else(|| TokenizerError::BadJson {
        file: "tokenizer.json",
        message: "`precompiled_charsmap` is no base64".to_owned(),
    })?;
    Charsmap::new(&bytes)
}

/// Decodes base64 of the ordinary alphabet.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EncodeOptions, JsonFiles, Tokenizer};
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::LazyLock;

    /// Ours and the crate's, of every shape that is read here.
    static PAIRS: LazyLock<Vec<(Tokenizer, tokenizers::Tokenizer)>> = LazyLock::new(|| {
        let words = [
            "\u{2581}",
            "a",
            "b",
            "ab",
            "\u{2581}a",
            "\u{2581}ab",
            "ba",
            "aba",
            "é",
            "e",
            "\u{2581}b\u{2581}a",
            "xy",
            "漢",
        ];
        let mut vocab = vec![json!(["<unk>", 0.0]), json!(["</s>", 0.0])];
        vocab.extend(
            words.iter().enumerate().map(|(i, word)| json!([word, -1.0 - (i * 7 % 5) as f64 * 0.75])),
        );
        let with_bytes: Vec<Value> = vocab
            .iter()
            .cloned()
            .chain((0..256).map(|byte| json!([format!("<0x{byte:02X}>"), -9.0])))
            .collect();
        let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split});
        let white =
            |then: Value| json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, then]});
        let normal = |steps: Value| json!({"type": "Sequence", "normalizers": steps});
        let collapse = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
        let replace = json!({"type": "Replace", "pattern": {"String": "``"}, "content": "ab"});
        let shapes = [
            (Value::Null, metaspace("always", true), false),
            (normal(json!([{"type": "NFKC"}, collapse])), metaspace("always", true), false),
            (normal(json!([{"type": "NFD"}, strip, replace, collapse])), metaspace("never", true), true),
            (normal(json!([{"type": "Lowercase"}, {"type": "NFC"}])), white(metaspace("always", true)), true),
            (json!({"type": "NFKD"}), metaspace("always", false), false),
        ];
        let make = |(normalizer, pre_tokenizer, bytes): (Value, Value, bool)| {
            let added = |content: &str, id: u32, special: bool| {
                json!({"id": id, "content": content, "special": special, "normalized": false, "single_word": false,
                    "lstrip": !special, "rstrip": false})
            };
            let vocab = if bytes { &with_bytes } else { &vocab };
            let next = vocab.len() as u32;
            let source = json!({
                "added_tokens": [added("<unk>", 0, true), added("</s>", 1, true), added("<mask>", next, false)],
                "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": metaspace("always", true),
                "post_processor": null,
                "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": bytes},
            });
            let bytes = serde_json::to_vec(&source).unwrap();
            let ours = Tokenizer::from_json(JsonFiles { tokenizer: &bytes, ..JsonFiles::default() }).unwrap();
            assert!(format!("{ours:?}").contains("unigram"), "{ours:?}");
            (ours, tokenizers::Tokenizer::from_bytes(&bytes).unwrap())
        };
        shapes.map(make).into()
    });

    proptest! {
        #[test]
        fn ids_are_those_of_the_crate(
            parts in prop::collection::vec("a|b|ab|aba|x|y|``|e\u{301}|é|É|ﬁ| |  |\n|\u{2581}|漢|[ -\u{4ff}]|</s>|<mask>|<unk>", 0..24),
        ) {
            let text = parts.concat();
            for (index, (ours, theirs)) in PAIRS.iter().enumerate() {
                let options = EncodeOptions { add_special: false, parse_special: true };
                let theirs = theirs.encode_fast(text.as_str(), false).unwrap();
                prop_assert_eq!(&ours.encode(&text, options).unwrap(), theirs.get_ids(), "{}: {:?}", index, text);
            }
        }

        #[test]
        fn base64_of_anything(bytes: Vec<u8>) {
            const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let mut text = String::new();
            for chunk in bytes.chunks(3) {
                let bits = chunk.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
                let letter = |at: usize| LETTERS[(bits >> (18 - 6 * at)) as usize & 63] as char;
                text.extend((0..=chunk.len()).map(letter));
                text.push_str(&"=".repeat(3 - chunk.len()));
            }
            prop_assert_eq!(decode_base64(&text), Some(bytes));
        }
    }
}
