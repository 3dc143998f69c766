//! Text split into pieces before byte-level BPE merges them.
//!
//! The look-ahead of published patterns is applied by hand ([`Rule`]), so that every pattern is an ordinary regular
//! expression and splitting takes linear time on any input.

use crate::TokenizerError;
use crate::families::{Family, Rule};
use regex_automata::meta::Regex;
use std::borrow::Cow;
use unicode_normalization::UnicodeNormalization;

/// The largest piece of [`Rule::SpacePowers`], in characters.
const LARGEST_POWER: usize = 512;

/// One pass over a text.
struct Stage {
    /// The patterns, and last, where the rule is about white space, `\s+`.
    regex: Regex,
    rule: Rule,
    /// The pattern that the rule is about.
    special: usize,
    /// What lies between matches is dropped.
    drop_between: bool,
}

impl Stage {
    fn new(patterns: &[&str], rule: Rule) -> Option<Self> {
        let spaces = matches!(rule, Rule::SpaceRuns | Rule::SpacePowers);
        let patterns: Vec<&str> = patterns.iter().copied().chain(spaces.then_some(r"\s+")).collect();
        let regex = Regex::new_many(&patterns).ok()?;
        Some(Self { regex, rule, special: patterns.len() - 1, drop_between: false })
    }
}

/// The splitting rules of one model.
pub(crate) struct PreTokenizer {
    stages: Vec<Stage>,
    whole_tokens: bool,
    nfc: bool,
    /// A space is put before text that begins with none.
    prefix_space: bool,
}

/// A pass as `tokenizer.json` describes it.
pub(crate) struct JsonStage<'p> {
    pub(crate) pattern: &'p str,
    /// What the pattern does not find is dropped.
    pub(crate) drop_between: bool,
}

/// Repetition that gives nothing back, in the published patterns that have it. The character that follows cannot be one of
/// those repeated, so that there is nothing to give back, and plain repetition is the same.
const POSSESSIVE: [(&str, &str); 2] = [
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r"[^\s\p{L}\p{N}]++[\r\n]*", r"[^\s\p{L}\p{N}]+[\r\n]*"),
];

/// The pattern without possessive repetition; `None` when that may change it. What is written `?+` means something else to
/// a regular expression that knows no such repetition.
fn plain_repetition(pattern: &str) -> Option<String> {
    let plain = POSSESSIVE.iter().fold(pattern.to_owned(), |text, (from, to)| text.replace(from, to));
    let possessive = ["?+", "*+", "++", "}+"];
    // `\p{L}+` is a class that is repeated.
    let rest = ["L", "M", "N", "P", "S", "Lu", "Ll", "Lt", "Lm", "Lo", "Han"]
        .iter()
        .fold(plain.clone(), |text, class| text.replace(&format!("\\p{{{class}}}+"), ""));
    (!possessive.iter().any(|mark| rest.contains(mark))).then_some(plain)
}

/// Whether a pattern neither looks around nor refers back, so that it is searched for in linear time.
pub(crate) fn is_regular(pattern: &str) -> bool {
    plain_repetition(pattern).is_some_and(|pattern| Regex::new(&pattern).is_ok())
}

impl PreTokenizer {
    /// The rules of `family`, which `name` names.
    pub(crate) fn new(family: &Family, name: &str) -> Result<Self, TokenizerError> {
        let stages = family.stages.iter().map(|stage| {
            Stage::new(stage.patterns, stage.rule).ok_or_else(|| {
                TokenizerError::BadVocab(format!("a pattern of pre-tokenizer `{name}` does not compile"))
            })
        });
        let stages = stages.collect::<Result<_, TokenizerError>>()?;
        Ok(Self { stages, whole_tokens: family.whole_tokens, nfc: family.nfc, prefix_space: false })
    }

    /// The passes a `tokenizer.json` lists. `None` when a pattern looks around in another way than at the end of runs
    /// of white space.
    pub(crate) fn from_json<'p>(
        stages: impl IntoIterator<Item = JsonStage<'p>>,
        whole_tokens: bool,
        nfc: bool,
        prefix_space: bool,
    ) -> Option<Self> {
        let stages = stages.into_iter().map(|JsonStage { pattern, drop_between }| {
            let words = [r"|\s+(?!\S)|\s+", r"|\s+(?!\S)"].iter().find_map(|tail| pattern.strip_suffix(tail));
            let rule = if words.is_some() { Rule::SpaceRuns } else { Rule::Plain };
            let stage = Stage::new(&[&plain_repetition(words.unwrap_or(pattern))?], rule)?;
            Some(Stage { drop_between, ..stage })
        });
        Some(Self { stages: stages.collect::<Option<_>>()?, whole_tokens, nfc, prefix_space })
    }

    pub(crate) fn whole_tokens(&self) -> bool {
        self.whole_tokens
    }

    /// The text in the form the vocabulary was trained on.
    pub(crate) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.nfc || unicode_normalization::is_nfc(text) {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(text.nfc().collect())
        }
    }

    /// Calls `piece` with the pieces of `text` in order; none is empty. Together they are `text`, but for a space in front
    /// and for what a `tokenizer.json` says to drop.
    pub(crate) fn split<E>(&self, text: &str, piece: &mut dyn FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        if self.prefix_space && !text.is_empty() && !text.starts_with(' ') {
            return split_from(&self.stages, &format!(" {text}"), piece);
        }
        split_from(&self.stages, text, piece)
    }
}

fn split_from<E>(
    stages: &[Stage],
    text: &str,
    piece: &mut dyn FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let Some((stage, rest)) = stages.split_first() else {
        return if text.is_empty() { Ok(()) } else { piece(text) };
    };
    let mut done = 0;
    let mut input = regex_automata::Input::new(text);
    while let Some(found) = stage.regex.search(&input) {
        let (start, mut end) = (found.start(), found.end());
        let special = found.pattern().as_usize() == stage.special;
        let run = &text[start..end];
        if stage.rule == Rule::Thousands && !special {
            // Digits that are left to the next pass, and the first character behind them.
            input.set_start(end - run.chars().next_back().map_or(0, char::len_utf8));
            continue;
        }
        if start > done && !stage.drop_between {
            split_from(rest, &text[done..start], piece)?;
        }
        match stage.rule {
            Rule::SpaceRuns | Rule::SpacePowers if special => {
                let last = run.chars().next_back().map_or(0, char::len_utf8);
                if end < text.len() && run.len() > last {
                    // A word follows: leave it the last character, unless that is all there is.
                    end -= last;
                }
                if stage.rule == Rule::SpacePowers {
                    split_powers(rest, &text[start..end], piece)?;
                } else {
                    split_from(rest, &text[start..end], piece)?;
                }
            }
            Rule::Thousands => {
                let mut at = 0;
                let mut left = run.chars().count();
                for (index, c) in run.char_indices() {
                    if index > at && left.is_multiple_of(3) {
                        split_from(rest, &run[at..index], piece)?;
                        at = index;
                    }
                    left -= 1;
                    debug_assert!(c.is_numeric());
                }
                split_from(rest, &run[at..], piece)?;
            }
            _ => split_from(rest, run, piece)?,
        }
        done = end;
        // No published pattern matches nothing; one that does must not stand still.
        let next = if end > start { end } else { end + text[end..].chars().next().map_or(1, char::len_utf8) };
        if next > text.len() {
            break;
        }
        input.set_start(next);
    }
    if stage.drop_between { Ok(()) } else { split_from(rest, &text[done..], piece) }
}

/// Pieces of as many characters as the highest power of two that is left.
fn split_powers<E>(rest: &[Stage], run: &str, piece: &mut dyn FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let mut left = run.chars().count();
    let mut run = run;
    while left > 0 {
        let take = (1 << left.ilog2()).min(LARGEST_POWER);
        let end = run.char_indices().nth(take).map_or(run.len(), |(at, _)| at);
        split_from(rest, &run[..end], piece)?;
        run = &run[end..];
        left -= take;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;
    use std::sync::LazyLock;

    static ALL: LazyLock<Vec<(&str, PreTokenizer)>> = LazyLock::new(|| {
        let new = |name| (name, PreTokenizer::new(families::named(name).unwrap(), name).unwrap());
        families::names().map(new).collect()
    });

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let pre = &ALL.iter().find(|(known, _)| *known == name).unwrap().1;
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
        let error = families::named("no-such").err().unwrap().to_string();
        assert!(error.contains("no-such") && error.contains("qwen2, deepseek-r1-qwen"), "{error}");
    }

    #[test]
    fn white_space_in_powers_of_two() {
        let lengths = |text: &str| pieces("jais-2", text).iter().map(String::len).collect::<Vec<_>>();
        assert_eq!(lengths(&(" ".repeat(1031) + "x")), [512, 512, 4, 2, 2]);
        assert_eq!(lengths(&" ".repeat(7)), [4, 2, 1]);
        assert_eq!(pieces("jais-2", "a   \n b"), ["a", "   \n", " b"]);
    }

    #[test]
    fn digits_in_threes_from_the_right() {
        assert_eq!(pieces("superbpe", "a1234567b٣٤٥٦"), ["a", "1", "234", "567", "b", "٣", "٤٥٦"]);
        assert_eq!(pieces("afmoe", "1234567 12 123"), ["1", "234", "567", " ", "12", " ", "123"]);
        // Behind the digits a word goes on: no threes, and the next pass splits from the left.
        assert_eq!(
            pieces("tiny_aya", "1234 1234x 12345."),
            ["1", "234", " ", "123", "4", "x", " ", "12", "345", "."]
        );
    }

    #[test]
    fn other_families() {
        assert_eq!(pieces("exaone-moe", "one two  three"), ["one two", " ", " three"]);
        assert_eq!(pieces("ufakzeka", "Ankara'da it's"), ["Ankara", "'da", " it", "'s"]);
        assert_eq!(pieces("ufakzeka", "'sabah"), ["'sabah"]);
        assert_eq!(pieces("qwen2", "'sabah"), ["'s", "abah"]);
        assert_eq!(pieces("kimi-k2", "漢字kana don't"), ["漢字", "kana", " don't"]);
        assert_eq!(pieces("laguna", "a \n\nb"), ["a", " ", "\n\n", "b"]);
        assert_eq!(pieces("qwen2", "a \n\nb"), ["a", " \n\n", "b"]);
        assert_eq!(pieces("chameleon", "IMGIMGABZ  x"), ["IMGIMGABZ", "  ", "x"]);
        assert_eq!(pieces("bloom", "a, b(c"), ["a", ",", " b", "(", "c"]);
        assert_eq!(pieces("viking", "a12"), ["a", "1", "2"]);
        assert_eq!(pieces("deepseek-llm", "x 12  "), ["x", " ", "12", "  "]);
        assert_eq!(pieces("minicpm5", "1234x"), ["123", "4", "x"]);
        assert_eq!(pieces("bailingmoe", "a\n\n x"), ["a", "\n\n", " x"]);
        assert_eq!(pieces("spark2_5", "a!\n\n"), ["a", "!", "\n", "\n"]);
        assert_eq!(pieces("youtu", "안녕abc"), ["안녕", "abc"]);
    }

    #[test]
    fn possessive_repetition() {
        let stage = |pattern: &'static str| {
            let stage = JsonStage { pattern, drop_between: false };
            PreTokenizer::from_json([stage], false, false, false)
        };
        let pattern = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        let mut out = Vec::new();
        let text = "  --a \n";
        let pre = stage(pattern).unwrap();
        pre.split::<()>(text, &mut |piece| {
            out.push(piece.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(out, [" ", " --", "a", " \n"]);
        assert!(stage("a?+b").is_none() && stage("(?>a)b").is_none() && stage("a(?=b)").is_none());
    }

    proptest::proptest! {
        #[test]
        fn pieces_are_the_text(text in "(\\PC|[ \t\r\n]|'s|[0-9]{1,5}|[a-zA-Z ]{1,4}|  |漢|\u{301}|\u{2028}){0,40}") {
            for name in families::names() {
                proptest::prop_assert_eq!(pieces(name, &text).concat(), text.as_str(), "{}", name);
            }
        }
    }
}
