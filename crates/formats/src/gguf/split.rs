//! Split models: what a shard says of its place, how shards are named, and what can be wrong with several.

use std::fmt;
use std::path::PathBuf;

use super::error::GgufError;
use super::metadata::GgufMetadata;

/// Fits `split.count` and `split.no`, which are u16 where they are written.
const MAX_SHARDS: u64 = crate::bytes::MAX_SHARDS as u64;

/// A file's place in a split model, from its `split.*` keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Which shard it is, from 1 (`split.no` counts from 0).
    pub number: u32,
    /// Shards in all, at least 2 and at most 16384.
    pub count: u32,
    /// Tensors of all shards together, where the file says it.
    pub tensors: Option<u64>,
}

impl Split {
    /// `None` for a file that is whole. Files that were merged again keep a count of 0.
    pub(super) fn of(metadata: &GgufMetadata) -> Result<Option<Self>, GgufError> {
        let count: u64 = metadata.get("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        if count > MAX_SHARDS {
            return Err(GgufError::SplitCount { count, limit: MAX_SHARDS });
        }
        let no: u64 = metadata.require("split.no")?;
        if no >= count {
            return Err(GgufError::SplitNumber { no, count });
        }
        let tensors = metadata.get("split.tensors.count")?;
        // Both fit: they are at most the limit.
        Ok(Some(Self { number: no as u32 + 1, count: count as u32, tensors }))
    }
}

/// The name of a shard's file: `PREFIX-00002-of-00003.gguf`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardName {
    /// What all shards of the model share.
    pub prefix: String,
    /// Which shard it is, from 1.
    pub number: u32,
    /// Shards in all.
    pub count: u32,
    /// `gguf`, in the letters of the file.
    extension: String,
}

impl ShardName {
    /// The parts of a file's name, `None` when it is not that of a shard.
    pub fn parse(file_name: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|n: &u32| format!("{n:05}") == text);
        let (stem, extension) = file_name.rsplit_once('.')?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let (no, count) = (number(no)?, number(count)?);
        let valid = extension.eq_ignore_ascii_case("gguf") && (1..=count).contains(&no);
        valid.then(|| Self { prefix: prefix.into(), number: no, count, extension: extension.into() })
    }

    /// The name of another shard of the same model.
    pub fn with_number(&self, number: u32) -> Self {
        Self { number, ..self.clone() }
    }

    /// The name that a shard should have whose file is called otherwise.
    pub(super) fn expected(file_name: &str, split: Split) -> Self {
        let known = Self::parse(file_name);
        let (stem, extension) = match file_name.rsplit_once('.') {
            Some((stem, extension)) if extension.eq_ignore_ascii_case("gguf") => (stem, extension),
            _ => (file_name, "gguf"),
        };
        let prefix = known.map_or_else(|| stem.to_owned(), |known| known.prefix);
        Self { prefix, number: split.number, count: split.count, extension: extension.to_owned() }
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, number, count, extension } = self;
        write!(f, "{prefix}-{number:05}-of-{count:05}.{extension}")
    }
}

/// Why shards do not make a model. Shards are named by their files; those given as bytes are `shard 2`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
#[non_exhaustive]
pub enum SplitError {
    /// Bytes that cannot be read.
    #[error("number {index} of the files given: {source}{}", .source.advice())]
    Unreadable { index: usize, source: GgufError },
    /// Nothing at all.
    #[error("no file was given: give all the shards of a model")]
    NoShards,
    /// A whole file among shards.
    #[error("{shard} is not a shard of a split model (it has no split.count): fetch the shards of one model")]
    NotSplit { shard: String },
    /// The name does not lead to the other shards.
    #[error(
        "shard {} of {} of a split model, under a name from which the other shards cannot be found: \
         give it the name {expected}, with the others beside it under names of that form", .expected.number, .expected.count
    )]
    Renamed { expected: ShardName },
    /// Name and content contradict each other.
    #[error(
        "{named} is shard {} of {} by its keys split.no and split.count: fetch it again, or, if it was renamed, \
         give each shard its own name back", .split.number, .split.count
    )]
    Name { named: ShardName, split: Split },
    /// Files that are not there.
    #[error("{}", missing(*.count, *.absent, .dir, .names, .others))]
    Missing {
        /// Where they were looked for.
        dir: PathBuf,
        count: u32,
        /// How many are not there.
        absent: usize,
        /// The first of their names.
        names: Vec<String>,
        /// Files that may be theirs, as of unfinished downloads.
        others: Vec<String>,
    },
    /// Bytes that were not given.
    #[error("a split model of {count} shards, of which number {number} was not given: give all of them")]
    NotGiven { number: u32, count: u32 },
    /// One shard two times.
    #[error("shard {number} of {count} was given twice: give each of them once")]
    Twice { number: u32, count: u32 },
    /// A shard of another split.
    #[error(
        "{shard} and {first} are of different splits: {key} is {found} in the one and {expected} in the other; \
         fetch the shards again, all from one place"
    )]
    OtherSplit { shard: String, first: String, key: &'static str, found: String, expected: String },
    /// A shard of another model.
    #[error(
        "{shard} and {first} are of different models: {key} is {found} in the one and {expected} in the other; \
         fetch the shards again, all from one place"
    )]
    OtherModel { shard: String, first: String, key: String, found: String, expected: String },
    /// A tensor in two shards.
    #[error(
        "tensor {tensor:?} is in {first} and again in {second}: they are not of one split; \
         fetch the shards again, all from one place"
    )]
    TensorTwice { tensor: String, first: String, second: String },
    /// Too few or too many tensors.
    #[error(
        "the {count} shards hold {found} tensors together, and split.tensors.count says {claimed}: \
         they are not of one split; fetch the shards again, all from one place"
    )]
    Tensors { count: u32, found: usize, claimed: u64 },
}

/// Which, where, and what to do.
fn missing(count: u32, absent: usize, dir: &std::path::Path, names: &[String], others: &[String]) -> String {
    let are = if absent == 1 { "1 is".to_owned() } else { format!("{absent} are") };
    let mut text = format!("a split model of {count} shards, of which {are} not in {}: ", dir.display());
    text += &names.join(", ");
    if absent > names.len() {
        text += &format!(" and {} more", absent - names.len());
    }
    if !others.is_empty() {
        text += &format!("; there is {}, whose download may not have finished", others.join(", "));
    }
    text + "; fetch what is missing into that folder, from where the other shards came"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards_are_told_from_others() {
        for name in ["m-00001-of-00003.gguf", "a-b-of-c-12345-of-65535.GGUF", "-00001-of-00001.gguf"] {
            assert_eq!(ShardName::parse(name).expect(name).to_string(), name);
        }
        let name = ShardName::parse("dir.v1-00002-of-00003.gguf").expect("a name");
        assert_eq!((name.prefix.as_str(), name.number, name.count), ("dir.v1", 2, 3));
        assert_eq!(name.with_number(3).to_string(), "dir.v1-00003-of-00003.gguf");
        assert_eq!(ShardName::parse("m-100000-of-100000.gguf").expect("six digits").count, 100_000);
        for name in [
            "m.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-000001-of-00003.gguf",
            "m-+0001-of-00003.gguf",
            "m-00001-of-99999999999.gguf",
            "m-00001-of-00003.safetensors",
            "m00001-of-00003.gguf",
            "",
        ] {
            assert_eq!(ShardName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn the_expected_name_keeps_what_the_file_is_called() {
        let split = Split { number: 2, count: 3, tensors: None };
        for (name, want) in [
            ("m.gguf", "m-00002-of-00003.gguf"),
            ("blob", "blob-00002-of-00003.gguf"),
            ("m-00001-of-00009.gguf", "m-00002-of-00003.gguf"),
        ] {
            assert_eq!(ShardName::expected(name, split).to_string(), want);
        }
    }
}
