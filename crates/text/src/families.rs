//! How each family of byte-level BPE splits text before merging: one table, by the name in `tokenizer.ggml.pre`.
//!
//! Patterns are those of the models' own `tokenizer.json`, without the look-ahead that [`Rule`] stands for.

use crate::TokenizerError;

/// What happens where a pattern ends and to white space that it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Nothing else.
    Plain,
    /// Published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that follows.
    SpaceRuns,
    /// `\s{512}(?!\S)|\s{256}(?!\S)|..|\s{1,2}(?!\S)|\s`: such a run comes in pieces of powers of two.
    SpacePowers,
    /// `\d{1,3}(?=(\d{3})*..)`: what the last pattern finds is split in threes from its end, what others find is left.
    Thousands,
}

/// One pass over the text: each match becomes a piece, and so does each stretch between matches.
pub(crate) struct Stage {
    /// Tried in order at each place.
    pub(crate) patterns: &'static [&'static str],
    pub(crate) rule: Rule,
}

/// How tokens are spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// In GPT-2's alphabet of bytes.
    ByteLevel,
    /// As SentencePiece does, spaces as U+2581; merges see the whole text.
    SentencePiece,
    /// Plainly, and text is split at white space, which is lost.
    Words,
}

/// Passes applied one after the other, each to the pieces of the one before.
pub(crate) struct Family {
    pub(crate) spelling: Spelling,
    pub(crate) stages: &'static [Stage],
    /// A piece that is a token is taken whole, without merging.
    pub(crate) whole_tokens: bool,
    /// Text is brought into Unicode normal form C first.
    pub(crate) nfc: bool,
    /// BOS is added unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// The mask token, in those that have one, takes the white space before it.
    pub(crate) mask: Option<&'static str>,
}

const fn words(patterns: &'static [&'static str]) -> Stage {
    Stage { patterns, rule: Rule::SpaceRuns }
}

const fn runs(patterns: &'static [&'static str]) -> Stage {
    Stage { patterns, rule: Rule::Plain }
}

const fn thousands(patterns: &'static [&'static str]) -> Stage {
    Stage { patterns, rule: Rule::Thousands }
}

const fn family(stages: &'static [Stage]) -> Family {
    let spelling = Spelling::ByteLevel;
    Family { spelling, stages, whole_tokens: false, nfc: false, add_bos: false, mask: None }
}

const fn spelled(spelling: Spelling) -> Family {
    Family { spelling, ..family(&[]) }
}

const GPT2_WORDS: Stage = words(&[r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+"]);

/// GPT-2's pattern as `tokenizer.json` implies it where it says `ByteLevel`.
pub(crate) const GPT2_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3_PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
const LLAMA3: Family = family(&[words(&[LLAMA3_PATTERN])]);
const JAIS2: Family = family(&[Stage { patterns: &[LLAMA3_PATTERN], rule: Rule::SpacePowers }]);
const MINICPM5: Family = family(&[
    runs(&[r"\p{N}{1,3}"]),
    words(&[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    ]),
]);
const QWEN2_WORDS: Stage = words(&[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
]);
const QWEN2: Family = family(&[QWEN2_WORDS]);
const LAGUNA: Family = family(&[runs(&[r"[^\n]+|\n+"]), QWEN2_WORDS]);
const QWEN35: Family = family(&[words(&[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
])]);
/// Without the English contractions: suffixes after an apostrophe stay whole.
const UFAKZEKA: Family =
    family(&[words(&[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"])]);
const SEED_CODER: Family = family(&[words(&[
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+",
])]);
const BAILING: Family = family(&[words(&[
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]",
])]);
/// Words apart by single spaces are one piece.
const EXAONE_MOE: Family = family(&[words(&[concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
)])]);
const GPT2: Family = family(&[GPT2_WORDS]);
const DIGITS_GPT2: Family = family(&[runs(&[r"\p{N}"]), GPT2_WORDS]);
const FALCON: Family = family(&[runs(&[r"[\p{P}$+<=>^~|`]+"]), GPT2_WORDS, runs(&["[0-9][0-9][0-9]"])]);
const DEFAULT: Family =
    family(&[runs(&[r"[\p{P}$+<=>^~|]+"]), GPT2_WORDS, runs(&[r"\p{N}+"]), runs(&["[0-9][0-9][0-9]"])]);
const CHAMELEON: Family = family(&[
    runs(&["<sentinel:[0-9]+>"]),
    runs(&["IMGIMG[A-I]{1,4}Z"]),
    runs(&[r"[\t\n]|    |  "]),
    runs(&[r"\p{N}"]),
    runs(&[r"[\p{P}!-/:-@\[-`{-~]"]),
    GPT2_WORDS,
]);
const BLOOM_WORDS: Stage = runs(&[r" ?[^(\s|.,!?…。，、।۔،)]+"]);
const BLOOM: Family = family(&[BLOOM_WORDS]);
const VIKING: Family = family(&[BLOOM_WORDS, runs(&[r"\p{N}"])]);
/// Letters with case, as far as DeepSeek's list of them goes.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ",
    r"\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ",
    r"ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
);
const DEEPSEEK_LLM: Family = family(&[
    runs(&[r"[\r\n]"]),
    runs(&[DEEPSEEK_LETTERS]),
    runs(&[r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"]),
    runs(&[r"\s+$"]),
    runs(&["[一-龥ࠀ-一가-\u{D7FF}]+"]),
    runs(&[r"\p{N}+"]),
]);
const DEEPSEEK_CODER: Family = family(&[
    runs(&[r"[\r\n]"]),
    runs(&[r"\s?\p{L}+"]),
    runs(&[r"\s?\p{P}+"]),
    runs(&["[一-龥ࠀ-一가-\u{D7FF}]+"]),
    runs(&[r"\p{N}"]),
]);
const KANJI_KANA: Stage = runs(&["[一-龥぀-ゟ゠-ヿ]+"]);
const DEEPSEEK_V3_WORDS: Stage = words(&[concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
)]);
const DEEPSEEK_V3: Family = family(&[runs(&[r"\p{N}{1,3}"]), KANJI_KANA, DEEPSEEK_V3_WORDS]);
const SPARK: Family = family(&[
    runs(&[r"\p{N}{1,3}"]),
    KANJI_KANA,
    words(&[concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+|[\r\n]"
    )]),
    runs(&[r"\p{N}"]),
]);
const AFMOE: Family = family(&[
    thousands(&[r"\p{N}+"]),
    runs(&[concat!(
        r"[一-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-ゟ゠-ヿ\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{0E40}-\u{0E7F}",
        r"\u{0E80}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}가-\u{D7AF}\u{1100}-\u{11FF}]+"
    )]),
    DEEPSEEK_V3_WORDS,
]);
const TEKKEN: Family = family(&[words(&[concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
)])]);
const GPT4O_WORDS: Stage = words(&[concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
)]);
const GPT4O: Family = family(&[GPT4O_WORDS]);
/// Threes where no word goes on behind the digits.
const TINY_AYA: Family = family(&[thousands(&[r"\d+[\w--\d]", r"\d+"]), GPT4O_WORDS]);
const SUPERBPE: Family = family(&[runs(&[r"\p{N}+"]), thousands(&[r"\d+"])]);
const YOUTU: Family = family(&[
    runs(&[r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"]),
    words(&[concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    )]),
]);
const KIMI_K2: Family = family(&[words(&[concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
)])]);

/// Names in `tokenizer.ggml.pre` and what they mean.
static TABLE: &[(&[&str], Family)] = &[
    (&["default"], DEFAULT),
    (
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        GPT2,
    ),
    (
        &["jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe"],
        Family { mask: Some("<mask>"), ..GPT2 },
    ),
    (&["modern-bert"], Family { mask: Some("[MASK]"), ..GPT2 }),
    (&["mpt", "olmo"], Family { nfc: true, ..GPT2 }),
    (&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"], DIGITS_GPT2),
    (&["command-r"], Family { nfc: true, ..DIGITS_GPT2 }),
    (
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        Family { whole_tokens: true, add_bos: true, ..LLAMA3 },
    ),
    (&["glm4", "glm5"], Family { whole_tokens: true, ..LLAMA3 }),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], LLAMA3),
    (&["jais-2"], JAIS2),
    (&["minicpm5"], Family { whole_tokens: true, ..MINICPM5 }),
    (&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"], Family { nfc: true, ..QWEN2 }),
    (&["stablelm2", "hunyuan", "solar-open", "grok-2"], QWEN2),
    (&["laguna"], LAGUNA),
    (&["qwen35"], QWEN35),
    (&["ufakzeka"], UFAKZEKA),
    (&["seed-coder"], SEED_CODER),
    (&["bailingmoe", "bailingmoe2", "llada-moe"], BAILING),
    (&["exaone-moe"], EXAONE_MOE),
    (&["falcon"], FALCON),
    (&["chameleon"], Family { add_bos: true, ..CHAMELEON }),
    (&["bloom", "poro-chat", "gpt3-finnish"], BLOOM),
    (&["viking"], VIKING),
    (&["deepseek-llm"], DEEPSEEK_LLM),
    (&["deepseek-coder"], DEEPSEEK_CODER),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], DEEPSEEK_V3),
    (&["spark2_5"], SPARK),
    (&["afmoe"], AFMOE),
    (&["youtu"], Family { whole_tokens: true, ..YOUTU }),
    (&["tekken"], Family { whole_tokens: true, add_bos: true, ..TEKKEN }),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], GPT4O),
    (&["granite-embed-multi-97m"], Family { whole_tokens: true, ..GPT4O }),
    (&["tiny_aya", "cohere2moe"], TINY_AYA),
    (&["superbpe"], SUPERBPE),
    (&["kimi-k2"], KIMI_K2),
    (&["gemma4", "granite-embed-multi-311m", "sarvam-moe"], spelled(Spelling::SentencePiece)),
    (&["whitespace"], spelled(Spelling::Words)),
];

/// What a name in `tokenizer.ggml.pre` means.
pub(crate) fn named(name: &str) -> Result<&'static Family, TokenizerError> {
    let found = TABLE.iter().find(|(names, _)| names.contains(&name));
    found.map(|(_, family)| family).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        name: name.to_owned(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// The name of what splits text by these patterns of a `tokenizer.json`, one a pass. Of several that differ in normal forms alone the
/// one that keeps to the file's, of equal ones the first.
pub(crate) fn of_json(patterns: &[&str], whole_tokens: bool, nfc: bool) -> Option<&'static str> {
    let fits = |family: &Family| {
        let same = |(stage, pattern): (&Stage, &&str)| stage.in_json().is_some_and(|own| own == *pattern);
        family.spelling == Spelling::ByteLevel
            && family.mask.is_none()
            && family.whole_tokens == whole_tokens
            && family.stages.len() == patterns.len()
            && family.stages.iter().zip(patterns).all(same)
    };
    let mut fitting = TABLE.iter().filter(|(_, family)| fits(family));
    let exact = fitting.clone().find(|(_, family)| family.nfc == nfc);
    exact.or_else(|| fitting.next()).and_then(|(names, _)| names.first().copied())
}

impl Stage {
    /// The one pattern of a `tokenizer.json` that says this.
    fn in_json(&self) -> Option<String> {
        let all = self.patterns.join("|");
        match self.rule {
            Rule::Plain => Some(all),
            Rule::SpaceRuns => Some(all + r"|\s+(?!\S)|\s+"),
            Rule::SpacePowers | Rule::Thousands => None,
        }
    }
}

/// Every name there is.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(names, _)| names.iter().copied())
}
