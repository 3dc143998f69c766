//! Opening GGUF files by path: a shard brings the others with it.

use std::path::{Path, PathBuf};

use super::file::{GgufFile, Shard};
use super::split::{ShardName, Split, SplitError};
use crate::Bytes;
use crate::checkpoint::CheckpointError;
use crate::listing::{names, of_missing};
use crate::sniff::Foreign;

/// Names of missing shards that a message lists.
const LISTED: usize = 10;

/// Opens a file, or the split model that it is a shard of.
pub(crate) fn open(path: &Path) -> Result<GgufFile, CheckpointError> {
    let given = open_one(path)?;
    let Some(split) = given.header().split() else { return Ok(GgufFile::whole(given)) };
    let wrong = |source| CheckpointError::Split { path: path.to_owned(), source: Box::new(source) };
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(ShardName::parse) else {
        return Err(wrong(SplitError::Renamed { expected: ShardName::expected(&file_name, split) }));
    };
    agree(&name, split).map_err(wrong)?;
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    all_there(dir, &name).map_err(wrong)?;
    let mut shards = vec![];
    for number in (1..=name.count).filter(|&number| number != name.number) {
        let name = name.with_number(number);
        let path = dir.join(name.to_string());
        let shard = open_one(&path)?;
        let wrong = |source| CheckpointError::Split { path: path.clone(), source: Box::new(source) };
        match shard.header().split() {
            Some(split) => agree(&name, split).map_err(wrong)?,
            None => return Err(wrong(SplitError::NotSplit { shard: name.to_string() })),
        }
        shards.push(shard);
    }
    shards.push(given);
    GgufFile::assemble(shards).map_err(wrong)
}

/// A shard of the split model that a folder holds, when its GGUF files are one such model and it holds no other weights.
pub(crate) fn only_split(dir: &Path) -> Option<PathBuf> {
    let names = names(dir);
    let ends = |name: &str, with: &str| name.to_ascii_lowercase().ends_with(with);
    if names.iter().any(|name| ends(name, ".safetensors")) {
        return None;
    }
    let shards = names.iter().filter(|name| ends(name, ".gguf")).map(|name| ShardName::parse(name));
    let shards = shards.collect::<Option<Vec<_>>>()?;
    let first = shards.first().filter(|first| first.count > 1)?;
    let alike = shards.iter().all(|shard| shard.with_number(first.number) == *first);
    alike.then(|| dir.join(first.to_string()))
}

fn open_one(path: &Path) -> Result<Shard, CheckpointError> {
    let bytes = Bytes::map(path).map_err(|source| CheckpointError::io(path, source))?;
    if let Some(found) = Foreign::recognise(&bytes).filter(|&found| found != Foreign::Gguf) {
        return Err(CheckpointError::Foreign { path: path.to_owned(), found });
    }
    Shard::new(Some(path), bytes).map_err(|source| CheckpointError::Gguf { path: path.to_owned(), source })
}

fn agree(name: &ShardName, split: Split) -> Result<(), SplitError> {
    match (name.number, name.count) == (split.number, split.count) {
        true => Ok(()),
        false => Err(SplitError::Name { named: name.clone(), split }),
    }
}

/// Looks for all files before any of them is opened, so that all that are missing are told at once.
fn all_there(dir: &Path, name: &ShardName) -> Result<(), SplitError> {
    let gone = |path: &Path| {
        std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    let (mut absent, mut listed) = (0, vec![]);
    for number in 1..=name.count {
        let name = name.with_number(number).to_string();
        if gone(&dir.join(&name)) {
            absent += 1;
            listed.extend((absent <= LISTED).then_some(name));
        }
    }
    if absent == 0 {
        return Ok(());
    }
    let others = names(dir)
        .into_iter()
        .filter(|other| listed.iter().any(|name| other != name && other.contains(name.as_str())));
    let others = others.take(3).collect();
    let names = listed.iter().map(|name| of_missing(dir, name)).collect();
    Err(SplitError::Missing { dir: dir.to_owned(), count: name.count, absent, names, others })
}
