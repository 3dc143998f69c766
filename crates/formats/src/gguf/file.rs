//! A model in GGUF: one file, or the shards of a split one.

use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::{Gguf, GgufError, GgufMetadata, SplitError, TensorInfo};
use crate::Bytes;
use crate::sniff::clip;

/// A model in GGUF: its files' bytes and their checked headers.
#[derive(Clone, Debug)]
pub struct GgufFile {
    /// At least one; in order.
    shards: Vec<Shard>,
    /// Tensor to shard.
    tensors: IndexMap<String, usize>,
}

/// One of the files of a model, or the only one.
#[derive(Clone, Debug)]
pub struct Shard {
    path: Option<PathBuf>,
    bytes: Bytes,
    header: Gguf,
}

impl Shard {
    /// Reads and checks the header of a file whose content is `bytes`.
    pub(super) fn new(path: Option<&Path>, bytes: Bytes) -> Result<Self, GgufError> {
        let header = Gguf::parse(&bytes)?;
        Ok(Self { path: path.map(Path::to_owned), bytes, header })
    }

    /// Where it was opened; `None` when it was given as bytes.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Its header.
    pub fn header(&self) -> &Gguf {
        &self.header
    }

    /// Its size in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// What messages call it.
    fn name(&self) -> String {
        match (self.path.as_deref().and_then(Path::file_name), self.header.split()) {
            (Some(name), _) => clip(&name.to_string_lossy()),
            (None, Some(split)) => format!("shard {}", split.number),
            (None, None) => "one of the files".to_owned(),
        }
    }
}

impl GgufFile {
    /// Reads and checks the header of a file given as bytes, which are kept.
    ///
    /// # Errors
    ///
    /// As [`Gguf::parse`], and when the file is one shard of a split model: see [`GgufFile::from_shards`].
    pub fn new(bytes: Bytes) -> Result<Self, GgufError> {
        let file = Shard::new(None, bytes)?;
        match file.header.split() {
            Some(split) => Err(GgufError::Split { number: split.number, count: split.count }),
            None => Ok(Self::whole(file)),
        }
    }

    /// Reads and checks the headers of all the shards of a split model, in any order, or of one file that is whole.
    ///
    /// # Errors
    ///
    /// When a shard cannot be read or is missing, or they do not belong together.
    pub fn from_shards(shards: impl IntoIterator<Item = Bytes>) -> Result<Self, SplitError> {
        let shards = shards.into_iter().zip(1..).map(|(bytes, index)| {
            Shard::new(None, bytes).map_err(|source| SplitError::Unreadable { index, source })
        });
        let mut shards = shards.collect::<Result<Vec<_>, _>>()?;
        match shards.as_slice() {
            [] => Err(SplitError::NoShards),
            [file] if file.header.split().is_none() => Ok(Self::whole(shards.remove(0))),
            _ => Self::assemble(shards),
        }
    }

    /// A file that is the whole model.
    pub(super) fn whole(file: Shard) -> Self {
        let tensors = file.header.tensors().map(|info| (info.name.clone(), 0)).collect();
        Self { shards: vec![file], tensors }
    }

    /// The model that these shards make; there is at least one.
    pub(super) fn assemble(mut shards: Vec<Shard>) -> Result<Self, SplitError> {
        if let Some(shard) = shards.iter().find(|shard| shard.header.split().is_none()) {
            return Err(SplitError::NotSplit { shard: shard.name() });
        }
        shards.sort_by_key(|shard| shard.header.split().map(|split| split.number));
        let Some(first) = shards.first() else { return Err(SplitError::NoShards) };
        for shard in &shards[1..] {
            of_one_split(first, shard)?;
        }
        let splits = || shards.iter().filter_map(|shard| shard.header.split());
        let count = splits().next().map_or(0, |split| split.count);
        for (split, number) in splits().zip(1..) {
            if split.number < number {
                return Err(SplitError::Twice { number: split.number, count });
            }
            if split.number > number {
                return Err(SplitError::NotGiven { number, count });
            }
        }
        if shards.len() < count as usize {
            return Err(SplitError::NotGiven { number: shards.len() as u32 + 1, count });
        }
        for shard in &shards[1..] {
            of_one_model(first, shard)?;
        }
        let mut tensors = IndexMap::new();
        for (index, shard) in shards.iter().enumerate() {
            for info in shard.header.tensors() {
                if let Some(before) = tensors.insert(info.name.clone(), index) {
                    let (tensor, first) = (clip(&info.name), shards[before].name());
                    return Err(SplitError::TensorTwice { tensor, first, second: shard.name() });
                }
            }
        }
        let claimed = first.header.split().and_then(|split| split.tensors);
        match claimed.filter(|&claimed| claimed != tensors.len() as u64) {
            Some(claimed) => Err(SplitError::Tensors { count, found: tensors.len(), claimed }),
            None => Ok(Self { shards, tensors }),
        }
    }

    /// The files: the shards in order, or the one that is whole.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The model's metadata, which the first shard holds.
    pub fn metadata(&self) -> &GgufMetadata {
        self.shards[0].header.metadata()
    }

    /// Size of the files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(Shard::file_bytes).sum()
    }

    /// All tensors, in the files' order. Their ranges are each in its own file.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.shards.iter().flat_map(|shard| shard.header.tensors())
    }

    /// A tensor and its stored bytes, `None` when there is none of that name.
    ///
    /// In a mapped file the bytes are aligned as the format says; in memory no alignment is promised.
    pub fn tensor(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        let shard = &self.shards[*self.tensors.get(name)?];
        let info = shard.header.tensor(name)?;
        Some((info, &shard.bytes[info.range.clone()]))
    }

    pub(crate) fn release(&self, name: &str, part: Range<usize>) {
        let shard = self.tensors.get(name).map(|&shard| &self.shards[shard]);
        if let Some((shard, info)) = shard.and_then(|shard| Some((shard, shard.header.tensor(name)?))) {
            shard.bytes.release(&info.range, part);
        }
    }
}

/// Whether both say the same of the split.
fn of_one_split(first: &Shard, shard: &Shard) -> Result<(), SplitError> {
    let (Some(a), Some(b)) = (first.header.split(), shard.header.split()) else { return Ok(()) };
    let other = |key, expected: String, found: String| {
        Err(SplitError::OtherSplit { shard: shard.name(), first: first.name(), key, found, expected })
    };
    if a.count != b.count {
        return other("split.count", a.count.to_string(), b.count.to_string());
    }
    match (a.tensors, b.tensors) {
        (Some(a), Some(b)) if a != b => other("split.tensors.count", a.to_string(), b.to_string()),
        _ => Ok(()),
    }
}

/// Whether what a shard says of the model, if anything, is what the first one says. The metadata is read from the first, so
/// a key that is elsewhere alone would otherwise be passed over.
fn of_one_model(first: &Shard, shard: &Shard) -> Result<(), SplitError> {
    const ARCHITECTURE: &str = "general.architecture";
    let (of_first, metadata) = (first.header.metadata(), shard.header.metadata());
    let architecture = of_first.get::<&str>(ARCHITECTURE).ok().flatten();
    let own =
        |key: &str| architecture.is_some_and(|a| key.strip_prefix(a).is_some_and(|k| k.starts_with('.')));
    let decides = |key: &str| key == ARCHITECTURE || key.starts_with("tokenizer.") || own(key);
    for (key, value) in metadata.iter().filter(|(key, _)| decides(key)) {
        let expected = of_first.value(key);
        if expected != Some(value) {
            let expected = expected.map_or_else(|| "not set".to_owned(), |value| value.describe());
            let (shard, first) = (shard.name(), first.name());
            let (key, found) = (clip(key), value.describe());
            return Err(SplitError::OtherModel { shard, first, key, found, expected });
        }
    }
    Ok(())
}
