//! The other common shape of `tokenizer.json`, SentencePiece BPE with a list of merges, read into the same code that serves
//! GGUF files: the `tokenizers` crate takes several times as long for the long stretches that this shape merges at once.

use crate::json_bpe::{around, merges, steps};
use crate::spm::{SPACE, Spm};
use crate::tokenizer::Around;
use crate::vocab::{Kind, Vocab};
use serde_json::Value;

/// The tokenizer `source` describes, when it is SentencePiece BPE of a shape known here.
pub(crate) fn read(source: &Value, vocab: &Vocab, raw: &[Vec<u8>]) -> Option<(Spm, Around)> {
    let model = &source["model"];
    let absent = |key: &str| model[key].is_null() || model[key] == "" || model[key] == false;
    let plain = ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"];
    let shape = model["type"] == "BPE" && model["byte_fallback"] == true && model["fuse_unk"] == true;
    // In normalised text a space may stand before a token, which then is part of it.
    let normalized = vocab.iter().any(|(_, token)| token.rules.normalized);
    if !shape || !plain.iter().all(|key| absent(key)) || normalized {
        return None;
    }
    // The crate could also merge characters to a special token, or bytes that stand for characters; no file asks for it.
    let single = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|text| text.chars().count() == 1);
    if vocab.iter().any(|(_, token)| token.kind == Kind::Control && single(&token.bytes)) {
        return None;
    }
    let prefix = space_prefix(&source["normalizer"])?;
    if !splits_nothing(&source["pre_tokenizer"]) {
        return None;
    }
    let around = around(&source["post_processor"])?;
    let unknown = match &model["unk_token"] {
        Value::Null => None,
        name => {
            let name = name.as_str()?;
            Some(raw.iter().position(|text| text == name.as_bytes())? as u32)
        }
    };
    let spm = Spm::by_merges(vocab, raw, merges(model)?.into_iter(), unknown, prefix).ok()?;
    (unknown.is_some() || spm.has_all_bytes()).then_some((spm, around))
}

/// Whether a space is put in front. `None` where the text is changed in another way than that and to U+2581 for spaces.
fn space_prefix(value: &Value) -> Option<bool> {
    let steps = steps(value, "normalizers")?;
    let replaces = |step: &Value| {
        step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == SPACE
    };
    match steps.as_slice() {
        [step] if replaces(step) => Some(false),
        [first, second] => {
            let prepends = first["type"] == "Prepend" && first["prepend"] == SPACE;
            (prepends && replaces(second)).then_some(true)
        }
        _ => None,
    }
}

/// No pre-tokenizer, or one that splits at spaces, of which the normalizer has left none.
fn splits_nothing(value: &Value) -> bool {
    value.is_null()
        || (value["type"] == "Split" && value["pattern"]["String"] == " " && value["invert"] != true)
}

#[cfg(test)]
mod tests {
    use crate::{EncodeOptions, JsonFiles, Tokenizer};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    /// Ours and the crate's, of the shapes there are.
    static PAIRS: LazyLock<Vec<(Tokenizer, tokenizers::Tokenizer)>> = LazyLock::new(|| {
        let load = |case: &str| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(case);
            let bytes = std::fs::read(folder.join("tokenizer.json")).unwrap();
            let ours = Tokenizer::from_json(JsonFiles { tokenizer: &bytes, ..JsonFiles::default() }).unwrap();
            assert!(format!("{ours:?}").contains("SentencePiece"), "{case}: {ours:?}");
            (ours, tokenizers::Tokenizer::from_bytes(&bytes).unwrap())
        };
        ["llama", "mistral", "gemma3_text"].map(load).into()
    });

    proptest! {
        #[test]
        fn ids_are_those_of_the_crate(
            parts in prop::collection::vec("the|ve| |  |\u{2581}|</s>|<\\|im_end\\|>|<s>|[a-z]|\\PC|\n|<0x41>", 0..30),
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
