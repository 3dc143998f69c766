//! The other way: the tokenizer of a folder as the keys of a GGUF file.
//!
//! What such a file can say is compared with what the folder says: on texts that meet every rule, both give the same ids, or there is
//! no file.

use serde_json::Value;

use crate::TokenizerError;
use crate::families;
use crate::gguf::{BY_SCORE, BYTE_LEVEL, GgufVocab};
use crate::json::{JsonFiles, Scheme, parse, read_vocab};
use crate::json_bpe;
use crate::tokenizer::{EncodeOptions, Model, Tokenizer};
use crate::vocab::Kind;

/// Texts that tell apart how tokenizers split.
const PROBES: &[&str] = &[
    "",
    " ",
    "Hello, world! It's 1234567 o'clock; they'LL  wait   \t for\u{a0}it.",
    "  leading, trailing  ",
    "line\r\n\r\n  next\n\n\n\tthird 3.14159 x10^23 (a+b)*[c]={d}|e~`f`",
    "Grüße aus Zürich, straße №5 — «привет» мир, 1½ ٣٤٥ ๑๒๓",
    "你好，世界。日本語テキスト 한국어 문장 हिन्दी ภาษาไทย",
    "👩\u{200d}👩\u{200d}👧 🏳️\u{200d}🌈 \u{1f600}\u{1f600} \u{feff}\u{200b}z",
    "snake_case camelCase HTTPServer2 don't DON'T we've I'd  'quoted' \"double\"",
    "aaaa bbbb the the theth here  there\u{2581}under",
    "\u{0}\u{1}\u{7f}\u{85}\u{2028} end",
];

impl GgufVocab {
    /// The keys for the tokenizer of a folder, with as many tokens as the model's embedding table has: those without a name are
    /// unused.
    ///
    /// # Errors
    /// The files are not understood ([`Tokenizer::from_json`]), or a GGUF file cannot say what they do.
    pub fn from_json(files: JsonFiles<'_>, size: usize) -> Result<GgufVocab, TokenizerError> {
        let theirs = Tokenizer::from_json(files)?;
        let source = parse("tokenizer.json", files.tokenizer)?;
        let (_, raw) = read_vocab(&source, Scheme::of(&source["decoder"]))?;
        let names = &theirs.parts().vocab;
        if names.len() > size {
            return none(format!(
                "tokens beyond the {size} of the embedding table: there are {}",
                names.len()
            ));
        }
        let special = theirs.special();
        let mut vocab = GgufVocab {
            bos: special.bos,
            eos: special.eos,
            unknown: special.unknown,
            padding: special.padding,
            ..GgufVocab::default()
        };
        let mut raw_texts = raw.iter();
        for id in 0..size {
            let text = raw_texts.next();
            let token = u32::try_from(id).ok().and_then(|id| names.get(id));
            let (text, kind) = match text.zip(token) {
                Some((text, token)) => (text.clone(), token.kind),
                None => (format!("[PAD{id}]").into_bytes(), Kind::Unused),
            };
            vocab.tokens.push(text);
            vocab.token_types.push(kind.to_gguf());
        }
        let model = &source["model"];
        let merges = json_bpe::merges(model).unwrap_or_default();
        match &theirs.parts().model {
            Model::Bpe(_) => {
                vocab.model = BYTE_LEVEL.to_owned();
                vocab.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
                vocab.pre = Some(pre_tokenizer(&source)?.to_owned());
            }
            Model::Spm(spm) => {
                vocab.model = BY_SCORE.to_owned();
                vocab.pre = Some("default".to_owned());
                vocab.add_space_prefix = Some(spm.space_prefix);
                vocab.scores = scores(&vocab.tokens, &merges);
                if let Some(unknown) = special.unknown {
                    vocab.token_types[unknown as usize] = Kind::Unknown.to_gguf();
                }
            }
            Model::Unigram(_) | Model::Rwkv(_) | Model::Json(_) => {
                let kind = model["type"].as_str().unwrap_or("of no type");
                return none(format!(
                    "a tokenizer.json of this shape (`{kind}`, other than byte-level or SentencePiece BPE)"
                ));
            }
        }
        vocab.add_around(&theirs)?;
        for (name, source) in &theirs.parts().chat_templates {
            match name.as_str() {
                "default" => vocab.chat_template = Some(source.clone()),
                _ => vocab.named_chat_templates.push((name.clone(), source.clone())),
            }
        }
        let ours = Tokenizer::from_gguf(vocab.clone())?;
        vocab.add_ends(&ours, &theirs)?;
        compare(&ours, &theirs, &source)?;
        Ok(vocab)
    }

    /// What is put around a text: at most BOS before and EOS behind it.
    fn add_around(&mut self, theirs: &Tokenizer) -> Result<(), TokenizerError> {
        let around = &theirs.parts().around;
        for (tokens, named, add) in [
            (&around.before, &mut self.bos, &mut self.add_bos),
            (&around.after, &mut self.eos, &mut self.add_eos),
        ] {
            *add = Some(!tokens.is_empty());
            match (&tokens[..], *named) {
                ([], _) => {}
                ([one], None) => *named = Some(*one),
                ([one], Some(other)) if *one == other => {}
                _ => return none(format!("a post_processor that adds the tokens {tokens:?}")),
            }
        }
        Ok(())
    }

    /// Tokens that end generation and have no other key yet.
    fn add_ends(&mut self, ours: &Tokenizer, theirs: &Tokenizer) -> Result<(), TokenizerError> {
        let known = &ours.special().ends;
        let mut missing = theirs.special().ends.iter().copied().filter(|id| !known.contains(id));
        (self.eot, self.eom) = (missing.next(), missing.next());
        missing.next().map_or(Ok(()), |third| {
            none(format!("that token {third}, too, ends generation: it has keys for three such tokens"))
        })
    }
}

/// Whether texts give the same ids, and these the same texts.
fn compare(ours: &Tokenizer, theirs: &Tokenizer, source: &Value) -> Result<(), TokenizerError> {
    let added = source["added_tokens"].as_array().into_iter().flatten().filter_map(|t| t["content"].as_str());
    let added = added.map(|token| format!("a {token} b{token}"));
    for text in PROBES.iter().map(|text| (*text).to_owned()).chain(added) {
        for add_special in [false, true] {
            let options = EncodeOptions { add_special, parse_special: true };
            let ids = theirs.encode(&text, options);
            if ours.encode(&text, options) != ids {
                return none(format!("how this tokenizer.json splits {text:?}"));
            }
            let ids = ids.unwrap_or_default();
            let (our_text, their_text) = (ours.decode(&ids, false), theirs.decode(&ids, false));
            if our_text != their_text {
                return none(format!(
                    "that this tokenizer.json decodes to {their_text:?} what would be {our_text:?}"
                ));
            }
        }
    }
    Ok(())
}

fn none<T>(what: String) -> Result<T, TokenizerError> {
    Err(TokenizerError::NotInGguf(what))
}

/// The name of the way in which a `tokenizer.json` splits text.
fn pre_tokenizer(source: &Value) -> Result<&'static str, TokenizerError> {
    let (stages, _) = json_bpe::stages(&source["pre_tokenizer"]).unwrap_or_default();
    let patterns: Vec<&str> = stages.iter().map(|stage| stage.pattern).collect();
    let whole = source["model"]["ignore_merges"] == true;
    let nfc = json_bpe::normalizer(&source["normalizer"]).unwrap_or_default();
    let plain = stages.iter().all(|stage| !stage.drop_between);
    families::of_json(&patterns, whole, nfc).filter(|_| plain).map_or_else(
        || none(format!("text split by the patterns {patterns:?} (ignore_merges {whole}, NFC {nfc}): no name is known for that")),
        Ok,
    )
}

/// SentencePiece merges what scores best, a list of merges what stands first.
fn scores(tokens: &[Vec<u8>], merges: &[(&str, &str)]) -> Vec<f32> {
    let mut ranks = ahash::AHashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry([left.as_bytes(), right.as_bytes()].concat()).or_insert(rank);
    }
    // What no merge makes is never the better one.
    let score = |token: &Vec<u8>| -(*ranks.get(token).unwrap_or(&merges.len()) as f32);
    tokens.iter().map(score).collect()
}
