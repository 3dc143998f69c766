//! How each family of byte-level BPE splits text before merging: one table, by the name in `tokenizer.ggml.pre`.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that
//! follows. That is their only look-ahead, and it is applied here by hand, so that every pattern is an ordinary
//! regular expression and splitting takes linear time on any input.

use crate::TokenizerError;
use regex_automata::meta::Regex;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

/// One pass over the text: each match becomes a piece, and so does each stretch between matches.
struct Stage {
    pattern: &'static str,
    /// After `pattern`, try a run of white space that leaves its last character to what follows.
    space_runs: bool,
}

/// Passes applied one after the other, each to the pieces of the one before.
struct Family {
    stages: &'static [Stage],
    /// A piece that is a token is taken whole, without merging.
    whole_tokens: bool,
    /// Text is brought into Unicode normal form C first.
    nfc: bool,
    /// BOS is added unless the file says otherwise.
    add_bos: bool,
}

const fn words(pattern: &'static str) -> Stage {
    Stage { pattern, space_runs: true }
}

const fn runs(pattern: &'static str) -> Stage {
    Stage { pattern, space_runs: false }
}

const fn family(stages: &'static [Stage]) -> Family {
    Family { stages, whole_tokens: false, nfc: false, add_bos: false }
}

const GPT2_WORDS: Stage = words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");

/// GPT-2's pattern as `tokenizer.json` implies it where it says `ByteLevel`.
pub(crate) const GPT2_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: Family = family(&[words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
)]);
const QWEN2: Family = family(&[words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
)]);
const QWEN35: Family = family(&[words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
)]);
const GPT2: Family = family(&[GPT2_WORDS]);
const DIGITS_GPT2: Family = family(&[runs(r"\p{N}"), GPT2_WORDS]);
const FALCON: Family = family(&[runs(r"[\p{P}$+<=>^~|`]+"), GPT2_WORDS, runs("[0-9][0-9][0-9]")]);
const DEFAULT: Family =
    family(&[runs(r"[\p{P}$+<=>^~|]+"), GPT2_WORDS, runs(r"\p{N}+"), runs("[0-9][0-9][0-9]")]);
const DEEPSEEK_CODER: Family = family(&[
    runs(r"[\r\n]"),
    runs(r"\s?\p{L}+"),
    runs(r"\s?\p{P}+"),
    runs("[一-龥ࠀ-一가-\u{D7FF}]+"),
    runs(r"\p{N}"),
]);
const DEEPSEEK_V3: Family = family(&[
    runs(r"\p{N}{1,3}"),
    runs("[一-龥぀-ゟ゠-ヿ]+"),
    words(concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
    )),
]);
const TEKKEN: Family = family(&[words(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
))]);
const GPT4O: Family = family(&[words(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
))]);

/// The table: names in `tokenizer.ggml.pre` and what they mean.
fn lookup(name: &str) -> Option<Family> {
    Some(match name {
        "default" => DEFAULT,
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "gigachat" | "a.x-4.0"
        | "mellum" | "modern-bert" | "exaone4" | "jais" | "trillion" | "granite-docling" | "jina-v1-en"
        | "jina-v2-code" | "roberta-bpe" => GPT2,
        "mpt" | "olmo" => Family { nfc: true, ..GPT2 },
        "smollm" | "starcoder" | "refact" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => DIGITS_GPT2,
        "command-r" => Family { nfc: true, ..DIGITS_GPT2 },
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => Family { whole_tokens: true, add_bos: true, ..LLAMA3 },
        "glm4" | "glm5" => Family { whole_tokens: true, ..LLAMA3 },
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => LLAMA3,
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" => Family { nfc: true, ..QWEN2 },
        "stablelm2" | "hunyuan" | "solar-open" | "grok-2" => QWEN2,
        "qwen35" => QWEN35,
        "falcon" => FALCON,
        "deepseek-coder" => DEEPSEEK_CODER,
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => DEEPSEEK_V3,
        "tekken" => Family { whole_tokens: true, add_bos: true, ..TEKKEN },
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => GPT4O,
        _ => return None,
    })
}

/// The splitting rules of one model.
pub(crate) struct PreTokenizer {
    stages: Vec<(Regex, bool)>,
    whole_tokens: bool,
    nfc: bool,
    add_bos: bool,
}

impl PreTokenizer {
    /// Looks `name` up in the table.
    pub(crate) fn named(name: &str) -> Result<Self, TokenizerError> {
        let family = lookup(name).ok_or_else(|| TokenizerError::UnknownPreTokenizer(name.to_owned()))?;
        let stages = family.stages.iter().map(|stage| {
            compile(stage.pattern, stage.space_runs).ok_or_else(|| {
                TokenizerError::BadVocab(format!("pattern of pre-tokenizer `{name}` does not compile"))
            })
        });
        let stages = stages.collect::<Result<_, TokenizerError>>()?;
        let Family { whole_tokens, nfc, add_bos, .. } = family;
        Ok(Self { stages, whole_tokens, nfc, add_bos })
    }

    /// The passes a `tokenizer.json` lists. `None` when a pattern looks around in another way than at the end of runs
    /// of white space.
    pub(crate) fn from_patterns<'p>(
        patterns: impl IntoIterator<Item = Cow<'p, str>>,
        whole_tokens: bool,
        nfc: bool,
    ) -> Option<Self> {
        let stages = patterns.into_iter().map(|pattern| {
            let words = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"].iter().find_map(|tail| pattern.strip_suffix(tail));
            compile(words.unwrap_or(&pattern), words.is_some())
        });
        Some(Self { stages: stages.collect::<Option<_>>()?, whole_tokens, nfc, add_bos: false })
    }

    pub(crate) fn whole_tokens(&self) -> bool {
        self.whole_tokens
    }

    pub(crate) fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// The text in the form the vocabulary was trained on.
    pub(crate) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.nfc || unicode_normalization::is_nfc(text) {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(text.nfc().collect())
        }
    }

    /// Calls `piece` with the pieces of `text` in order. Together they are `text`; none is empty.
    pub(crate) fn split<E>(&self, text: &str, piece: &mut dyn FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        split_from(&self.stages, text, piece)
    }
}

fn compile(pattern: &str, space_runs: bool) -> Option<(Regex, bool)> {
    let patterns: &[&str] = if space_runs { &[pattern, r"\s+"] } else { &[pattern] };
    Some((Regex::new_many(patterns).ok()?, space_runs))
}

fn split_from<E>(
    stages: &[(Regex, bool)],
    text: &str,
    piece: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let Some(((regex, space_runs), rest)) = stages.split_first() else {
        return if text.is_empty() { Ok(()) } else { piece(text) };
    };
    let mut done = 0;
    let mut input = regex_automata::Input::new(text);
    while let Some(found) = regex.search(&input) {
        let mut end = found.end();
        if *space_runs && found.pattern().as_usize() == 1 && end < text.len() {
            // The run is followed by a word: leave it the last character, unless that is all there is.
            let last = text[found.range()].chars().next_back().map_or(0, char::len_utf8);
            if found.len() > last {
                end -= last;
            }
        }
        if found.start() > done {
            split_from(rest, &text[done..found.start()], piece)?;
        }
        split_from(rest, &text[found.start()..end], piece)?;
        done = end;
        input.set_start(end);
    }
    split_from(rest, &text[done..], piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let pre = PreTokenizer::named(name).unwrap();
        pre.split::<()>(text, &mut |piece| {
            out.push(piece.to_owned());
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn white_space_leaves_its_last_character() {
        assert_eq!(pieces("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(pieces("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(pieces("llama-bpe", "a\n\nb"), ["a", "\n\n", "b"]);
        assert_eq!(pieces("llama-bpe", "a \t b"), ["a", " \t", " b"]);
        assert_eq!(pieces("llama-bpe", "a  "), ["a", "  "]);
        assert_eq!(pieces("gpt-2", "\u{3000}\u{3000}é"), ["\u{3000}", "\u{3000}", "é"]);
    }

    #[test]
    fn digits() {
        assert_eq!(pieces("smollm", "x  1234"), ["x", "  ", "1", "2", "3", "4"]);
        assert_eq!(pieces("qwen2", " 12"), [" ", "1", "2"]);
        assert_eq!(pieces("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(pieces("gpt-2", " 12345"), [" 12345"]);
    }

    #[test]
    fn contractions_and_case() {
        assert_eq!(pieces("gpt-2", "it'S"), ["it", "'", "S"]);
        assert_eq!(pieces("llama-bpe", "it'S"), ["it", "'S"]);
    }

    #[test]
    fn unknown_name_is_an_error() {
        let error = PreTokenizer::named("no-such").err().unwrap();
        assert!(error.to_string().contains("no-such"));
    }

    #[test]
    fn pieces_are_the_text() {
        let text = "Mixed 123 ½ ²³\r\n\t  日本語 don't — 🙂🙂 \u{85}x\u{a0}\u{a0}y  ";
        for name in ["default", "gpt-2", "smollm", "llama3", "qwen2", "qwen35", "falcon", "deepseek-coder"] {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
        }
        for name in ["deepseek-v3", "tekken", "gpt-4o"] {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
        }
    }
}
