//! How much longer a text may become when a tokenizer brings it into its normal form. Files can chain replacements, each of
//! which makes a multiple of the text; without a bound a few lines of JSON fill any memory.

use crate::TokenizerError;
use crate::charsmap::Charsmap;
use crate::json_unigram;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use std::cell::RefCell;
use std::sync::Arc;
use tokenizers::utils::SysRegex;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

/// The most bytes that are made of each byte of a text. One character of Unicode becomes 11 times as long in normal form
/// KD, and the spaces in that three times as long as U+2581.
const FACTOR: usize = 32;
/// And so many more, for what is put in front of short texts.
const MORE: usize = 4096;

/// The most bytes that may become of a text so long.
pub(crate) fn limit(bytes: usize) -> usize {
    bytes.saturating_mul(FACTOR).saturating_add(MORE)
}

/// Why a step is not done.
pub(crate) fn passed(kind: &str, index: usize, bytes: usize) -> TokenizerError {
    let step = format!("{kind} (step {index} of the normalizer)");
    TokenizerError::Grows { step, bytes, limit: limit(bytes) }
}

/// The normaliser of a `tokenizer.json` in the `tokenizers` crate, with a look at the length before and after each step.
#[derive(Clone)]
pub(crate) struct Bounded {
    steps: Arc<[Step]>,
}

struct Step {
    kind: String,
    normalizer: NormalizerWrapper,
    growth: Growth,
}

/// How long a step makes a text. The crate keeps 17 bytes for each, so that it must be known before.
enum Growth {
    /// By what is in Unicode: seen when it is done.
    Little,
    By(usize),
    /// Each match becomes so many bytes.
    Matches(Pattern, usize),
    Table(Charsmap),
}

enum Pattern {
    Text(String),
    Regex(SysRegex),
}

impl Growth {
    fn of(step: &Value) -> Result<Self, String> {
        let text =
            |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is no text"));
        Ok(match step["type"].as_str() {
            Some("Prepend") => Self::By(text(&step["prepend"])?.len()),
            Some("Replace") => {
                let pattern = match &step["pattern"]["String"] {
                    Value::String(text) => Pattern::Text(text.clone()),
                    _ => {
                        let pattern = SysRegex::new(&text(&step["pattern"]["Regex"])?);
                        Pattern::Regex(pattern.map_err(|e| e.to_string())?)
                    }
                };
                Self::Matches(pattern, text(&step["content"])?.len())
            }
            Some("Precompiled") => {
                let table = json_unigram::charsmap(&text(&step["precompiled_charsmap"])?);
                Self::Table(table.map_err(|e| e.to_string())?)
            }
            _ => Self::Little,
        })
    }

    fn fits(&self, text: &str, limit: usize) -> bool {
        match self {
            Self::Little => true,
            Self::By(more) => text.len() + more <= limit,
            // An empty match lies before or behind any character.
            Self::Matches(_, with) if (text.len() + 1).saturating_mul(*with + 1) <= limit => true,
            Self::Matches(pattern, with) => {
                let lengths: &mut dyn Iterator<Item = usize> = match pattern {
                    Pattern::Text(pattern) => &mut text.matches(pattern.as_str()).map(str::len),
                    Pattern::Regex(pattern) => &mut pattern.find_iter(text).map(|(start, end)| end - start),
                };
                // What is made, and what of the text is left.
                let (mut made, mut left) = (0, text.len());
                for length in lengths {
                    (made, left) = (made + with, left - length);
                    if made > limit {
                        return false;
                    }
                }
                made + left <= limit
            }
            Self::Table(table) => table.apply(text, limit).is_some(),
        }
    }
}

impl<'de> Deserialize<'de> for Bounded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let source = Value::deserialize(deserializer)?;
        let mut steps = Vec::new();
        flatten(&source, &mut steps);
        let steps = steps.into_iter().map(|step| {
            Ok(Step {
                kind: step["type"].as_str().unwrap_or_default().to_owned(),
                growth: Growth::of(step).map_err(de::Error::custom)?,
                normalizer: serde_json::from_value(step.clone()).map_err(de::Error::custom)?,
            })
        });
        Ok(Self { steps: steps.collect::<Result<_, _>>()? })
    }
}

fn flatten<'v>(value: &'v Value, steps: &mut Vec<&'v Value>) {
    match value["normalizers"].as_array() {
        Some(inner) if value["type"] == "Sequence" => inner.iter().for_each(|step| flatten(step, steps)),
        _ => steps.push(value),
    }
}

thread_local! {
    static FAILED: RefCell<Option<TokenizerError>> = const { RefCell::new(None) };
}

/// What went wrong since the last call: the crate goes on with the text as it is when its normaliser fails.
pub(crate) fn failure() -> Option<TokenizerError> {
    FAILED.take()
}

impl Normalizer for Bounded {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let done = self.steps(text);
        if let Err(error) = &done {
            FAILED.set(Some(error.clone()));
        }
        Ok(done?)
    }
}

impl Bounded {
    fn steps(&self, text: &mut NormalizedString) -> Result<(), TokenizerError> {
        let bytes = text.get().len();
        let limit = limit(bytes);
        for (index, step) in self.steps.iter().enumerate() {
            if !step.growth.fits(text.get(), limit) {
                return Err(passed(&step.kind, index, bytes));
            }
            step.normalizer.normalize(text).map_err(|e| TokenizerError::Encode(e.to_string()))?;
            if text.get().len() > limit {
                return Err(passed(&step.kind, index, bytes));
            }
        }
        Ok(())
    }
}
