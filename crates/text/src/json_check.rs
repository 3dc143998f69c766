//! What a `tokenizer.json` may say. Its parts are read by several readers, here and in the `tokenizers` crate, and each would
//! pass over a part that it does not know, or take a wrong value for the default: the ids would be wrong without a word.

use crate::TokenizerError;
use ahash::AHashMap;
use serde_json::Value;

/// A part of the file: its key, the key of the parts of a `Sequence`, and the types there are.
struct Part {
    key: &'static str,
    steps: &'static str,
    types: &'static [&'static str],
}

const PARTS: [Part; 4] = [
    Part {
        key: "normalizer",
        steps: "normalizers",
        types: &[
            "Bert",
            "BertNormalizer",
            "ByteLevel",
            "Lowercase",
            "NFC",
            "NFD",
            "NFKC",
            "NFKD",
            "Nmt",
            "Precompiled",
            "Prepend",
            "Replace",
            "Sequence",
            "Strip",
            "StripAccents",
        ],
    },
    Part {
        key: "pre_tokenizer",
        steps: "pretokenizers",
        types: &[
            "BertPreTokenizer",
            "ByteLevel",
            "CharDelimiterSplit",
            "Delimiter",
            "Digits",
            "FixedLength",
            "Metaspace",
            "Punctuation",
            "Sequence",
            "Split",
            "UnicodeScripts",
            "Whitespace",
            "WhitespaceSplit",
        ],
    },
    Part {
        key: "post_processor",
        steps: "processors",
        types: &["BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"],
    },
    Part {
        key: "decoder",
        steps: "decoders",
        types: &[
            "BPEDecoder",
            "ByteFallback",
            "ByteLevel",
            "CTC",
            "Fuse",
            "Metaspace",
            "Replace",
            "Sequence",
            "Strip",
            "WordPiece",
        ],
    },
];

/// Fields that are true or false wherever they stand.
const FLAGS: [&str; 18] = [
    "add_prefix_space",
    "clean_text",
    "cleanup",
    "handle_chinese_chars",
    "individual_digits",
    "invert",
    "lowercase",
    "lstrip",
    "normalized",
    "rstrip",
    "single_word",
    "special",
    "split",
    "strip_accents",
    "strip_left",
    "strip_right",
    "trim_offsets",
    "use_regex",
];
/// Fields that are text wherever they stand.
const TEXTS: [&str; 5] = ["content", "precompiled_charsmap", "prefix", "prepend", "replacement"];
/// Fields of few values.
const CHOICES: [(&str, &[&str]); 2] = [
    ("prepend_scheme", &["first", "never", "always"]),
    ("behavior", &["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]),
];

fn bad(message: String) -> TokenizerError {
    TokenizerError::BadJson { file: "tokenizer.json", message }
}

/// Refuses what no reader computes as the file means it.
pub(crate) fn check(source: &Value) -> Result<(), TokenizerError> {
    for part in &PARTS {
        check_part(part, part.key, &source[part.key])?;
    }
    check_model(&source["model"])?;
    check_tokens(source)
}

fn check_part(part: &Part, place: &str, value: &Value) -> Result<(), TokenizerError> {
    if value.is_null() {
        return Ok(());
    }
    let kind = &value["type"];
    let Some(kind) = kind.as_str().filter(|kind| part.types.contains(kind)) else {
        let known = part.types.join(", ");
        return Err(bad(format!("`{place}.type` is {kind}, which is not known (known: {known})")));
    };
    check_fields(place, value)?;
    if kind == "Sequence" {
        let steps = value[part.steps].as_array();
        let steps = steps.ok_or_else(|| bad(format!("`{place}.{}` is no list", part.steps)))?;
        for (index, step) in steps.iter().enumerate() {
            if step.is_null() {
                return Err(bad(format!("`{place}.{}[{index}]` is null", part.steps)));
            }
            check_part(part, &format!("{place}.{}[{index}]", part.steps), step)?;
        }
    }
    let pattern = &value["pattern"];
    let of_pattern = pattern["String"].is_string() || pattern["Regex"].is_string();
    if matches!(kind, "Replace" | "Split") && !of_pattern {
        return Err(bad(format!("`{place}.pattern` is {pattern}, neither a `String` nor a `Regex`")));
    }
    Ok(())
}

/// Checks the fields of an object that mean the same everywhere. What is null is as if it were not there.
fn check_fields(place: &str, value: &Value) -> Result<(), TokenizerError> {
    for (key, value) in value.as_object().into_iter().flatten() {
        let choices = CHOICES.iter().find(|(name, _)| name == key).map(|(_, choices)| *choices);
        let expected = if FLAGS.contains(&key.as_str()) && !value.is_boolean() {
            "true or false".to_owned()
        } else if TEXTS.contains(&key.as_str()) && !value.is_string() {
            "text".to_owned()
        } else if let Some(choices) = choices
            && !value.as_str().is_some_and(|value| choices.contains(&value))
        {
            choices.join(", ")
        } else {
            continue;
        };
        if !value.is_null() {
            return Err(bad(format!("`{place}.{key}` is {value}, not {expected}")));
        }
    }
    Ok(())
}

fn check_model(model: &Value) -> Result<(), TokenizerError> {
    let kind = &model["type"];
    if !kind.is_null() && !["BPE", "Unigram", "WordLevel", "WordPiece"].iter().any(|known| kind == known) {
        return Err(bad(format!(
            "`model.type` is {kind}, which is not known (known: BPE, Unigram, WordLevel, WordPiece)"
        )));
    }
    let dropout = &model["dropout"];
    if !dropout.is_null() && dropout.as_f64() != Some(0.0) {
        return Err(bad(format!(
            "`model.dropout` is {dropout}: ids would be drawn at random; set it to null"
        )));
    }
    for key in ["byte_fallback", "fuse_unk", "ignore_merges"] {
        if !(model[key].is_null() || model[key].is_boolean()) {
            return Err(bad(format!("`model.{key}` is {}, not true or false", model[key])));
        }
    }
    for key in ["unk_token", "continuing_subword_prefix", "end_of_word_suffix"] {
        if !(model[key].is_null() || model[key].is_string()) {
            return Err(bad(format!("`model.{key}` is {}, not text", model[key])));
        }
    }
    if kind == "BPE" || (kind.is_null() && !model["merges"].is_null()) {
        for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if !(model[key].is_null() || model[key] == "") {
                return Err(bad(format!("`model.{key}` is {}, which is not supported with BPE", model[key])));
            }
        }
        check_merges(model)?;
    }
    Ok(())
}

/// Every merge is of two tokens and gives a third.
fn check_merges(model: &Value) -> Result<(), TokenizerError> {
    let Some(merges) = model["merges"].as_array() else {
        return Err(bad("`model.merges` is no list".to_owned()));
    };
    let mut whole = String::new();
    for (rank, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(line) => line.split_once(' '),
            pair if pair.as_array().is_some_and(|pair| pair.len() == 2) => {
                pair[0].as_str().zip(pair[1].as_str())
            }
            _ => None,
        };
        let Some((left, right)) = pair else {
            return Err(bad(format!("merge {rank} ({merge}) is not a pair")));
        };
        whole.clear();
        whole.extend([left, right]);
        for token in [left, right, &whole] {
            if model["vocab"].get(token).is_none() {
                return Err(bad(format!(
                    "merge {rank} ({merge}) needs the token `{token}`, which there is not"
                )));
            }
        }
    }
    Ok(())
}

/// No id has two texts, no added token two ids, and what a post-processor adds is there.
fn check_tokens(source: &Value) -> Result<(), TokenizerError> {
    let id = |place: &str, value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| bad(format!("the id of {place} is {value}, which is no id")))
    };
    let mut texts: AHashMap<u32, &str> = AHashMap::new();
    let mut ids: AHashMap<&str, u32> = AHashMap::new();
    match &source["model"]["vocab"] {
        Value::Object(vocab) => {
            for (text, value) in vocab {
                let id = id(&format!("token `{text}`"), value)?;
                if let Some(other) = texts.insert(id, text) {
                    return Err(bad(format!("tokens `{other}` and `{text}` both have the id {id}")));
                }
                ids.insert(text, id);
            }
        }
        Value::Array(pieces) => {
            for (id, piece) in (0..).zip(pieces) {
                let text = piece[0].as_str().ok_or_else(|| bad(format!("piece {id} is no text")))?;
                texts.insert(id, text);
                ids.insert(text, id);
            }
        }
        _ => return Err(bad("`model.vocab` is missing".to_owned())),
    }
    let added = match &source["added_tokens"] {
        Value::Null => &[],
        Value::Array(added) => added.as_slice(),
        _ => return Err(bad("`added_tokens` is no list".to_owned())),
    };
    for (index, token) in added.iter().enumerate() {
        let text = token["content"].as_str();
        let text = text.ok_or_else(|| bad(format!("`added_tokens[{index}]` has no content")))?;
        check_fields(&format!("added_tokens[{index}] (`{text}`)"), token)?;
        let id = id(&format!("added token `{text}`"), &token["id"])?;
        match (texts.insert(id, text), ids.insert(text, id)) {
            (Some(other), _) if other != text => {
                return Err(bad(format!("added token `{text}` has the id {id}, which is that of `{other}`")));
            }
            (None, Some(other)) => {
                return Err(bad(format!(
                    "added token `{text}` has the id {id}, and another time the id {other}"
                )));
            }
            _ => {}
        }
    }
    check_around("post_processor", &source["post_processor"], &|id| texts.contains_key(&id))
}

fn check_around(place: &str, value: &Value, known: &dyn Fn(u32) -> bool) -> Result<(), TokenizerError> {
    for step in value["processors"].as_array().into_iter().flatten() {
        check_around(place, step, known)?;
    }
    let of_template = value["special_tokens"].as_object().into_iter().flatten();
    let of_template = of_template.flat_map(|(name, token)| {
        let ids = token["ids"].as_array().into_iter().flatten();
        ids.map(move |id| (name.as_str(), id))
    });
    let of_pair = ["sep", "cls"].into_iter().filter(|role| !value[role].is_null());
    for (name, id) in of_template.chain(of_pair.map(|role| (role, &value[role][1]))) {
        if !id.as_u64().and_then(|id| u32::try_from(id).ok()).is_some_and(known) {
            return Err(bad(format!("`{place}` adds `{name}` as the id {id}, which no token has")));
        }
    }
    Ok(())
}
