//! A Hugging Face folder: config.json, weights in one or several safetensors files, tokenizer files.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use indexmap::IndexMap;
use serde_json::Value;

use super::{SafetensorsError, SafetensorsFile, TensorInfo};
use crate::bytes::{Bytes, MAX_SHARDS, read_file};
use crate::listing::{names, of_missing};
use crate::sniff::{Foreign, clip};

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The optional files of a folder, as bytes: see [`HfFolder::file`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HfFile {
    /// `tokenizer.json`
    Tokenizer,
    /// `tokenizer_config.json`
    TokenizerConfig,
    /// `generation_config.json`
    GenerationConfig,
    /// `chat_template.jinja`
    ChatTemplate,
}

impl HfFile {
    /// The name in the folder.
    pub const fn file_name(self) -> &'static str {
        match self {
            HfFile::Tokenizer => "tokenizer.json",
            HfFile::TokenizerConfig => "tokenizer_config.json",
            HfFile::GenerationConfig => "generation_config.json",
            HfFile::ChatTemplate => "chat_template.jinja",
        }
    }
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
#[non_exhaustive]
pub enum FolderError {
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file is of another kind than its name says.
    #[error("{}: {found}", .path.display())]
    Foreign { path: PathBuf, found: Foreign },
    /// The folder holds no configuration.
    #[error("{} has no {CONFIG}: a Hugging Face checkpoint is a folder with config.json and model.safetensors, or what its index lists{hint}", .dir.display())]
    NoConfig { dir: PathBuf, hint: String },
    /// The folder holds no weights that can be read.
    #[error("{} has neither {SINGLE} nor {INDEX}: fetch them into the folder{hint}", .dir.display())]
    NoWeights { dir: PathBuf, hint: String },
    /// A JSON file is not one.
    #[error("{}: {message}; fetch it again from where the model came", .path.display())]
    Json { path: PathBuf, message: String },
    /// A weights file is damaged.
    #[error("{}: {source}; fetch it again and compare its size or checksum with those at its source", .path.display())]
    Safetensors { path: PathBuf, source: SafetensorsError },
    /// Files that the index lists are not there.
    #[error("{}", missing_shards(.index, .dir, .missing, *.listed, .others))]
    MissingShards {
        index: PathBuf,
        /// Where they were looked for.
        dir: PathBuf,
        /// Their names, in the order of the index, with what is known of each.
        missing: Vec<String>,
        /// How many files the index lists.
        listed: usize,
        /// What else of weights the folder holds, also unfinished.
        others: Vec<String>,
    },
    /// There are weights without a tensor, or an index that lists none.
    #[error("{} lists no tensors: fetch it again from where the model came", .path.display())]
    NoTensors { path: PathBuf },
    /// The index names a file that is not plainly inside the folder.
    #[error("{}: tensor {tensor:?} is said to lie in {file:?}, which is not a path inside the folder; fetch the index again", .path.display())]
    Escape { path: PathBuf, tensor: String, file: String },
    /// The index names a tensor that its file does not have.
    #[error("{}: tensor {tensor:?} is said to lie in {file:?}, which does not have it; fetch both again, from one version of the model", .path.display())]
    NotInShard { path: PathBuf, tensor: String, file: String },
}

impl FolderError {
    /// The configuration is there, and the weights, or some of them, are not.
    pub fn is_of_weights(&self) -> bool {
        matches!(self, Self::NoWeights { .. } | Self::MissingShards { .. })
    }
}

/// An opened folder. The weights are mapped; see [`Bytes::map`] for what the files must not do meanwhile.
#[derive(Clone, Debug)]
pub struct HfFolder {
    dir: PathBuf,
    config: Value,
    shards: Vec<(PathBuf, SafetensorsFile)>,
    /// Tensor to shard.
    tensors: IndexMap<String, usize>,
}

impl HfFolder {
    /// Opens a folder: its configuration and the headers of its weights.
    ///
    /// `model.safetensors` is taken when it exists, else what `model.safetensors.index.json` lists. The index
    /// decides what there is: tensors that a shard holds and the index does not list are not part of the checkpoint.
    ///
    /// # Errors
    ///
    /// When a needed file is missing, unreadable or damaged; see [`FolderError`].
    pub fn open(dir: &Path) -> Result<Self, FolderError> {
        let Some(config) = read_json(&dir.join(CONFIG))? else {
            let hint = match hint(dir) {
                hint if hint.is_empty() => "; fetch them into it, or give another path".to_owned(),
                hint => hint,
            };
            return Err(FolderError::NoConfig { dir: dir.to_owned(), hint });
        };
        let single = dir.join(SINGLE);
        if let Some(file) = open_shard(&single)? {
            let tensors: IndexMap<_, _> = file.tensors().map(|info| (info.name.clone(), 0)).collect();
            if tensors.is_empty() {
                return Err(FolderError::NoTensors { path: single });
            }
            return Ok(Self { dir: dir.to_owned(), config, shards: vec![(single, file)], tensors });
        }
        let index_path = dir.join(INDEX);
        let Some(index) = read_json(&index_path)? else {
            return Err(FolderError::NoWeights { dir: dir.to_owned(), hint: hint(dir) });
        };
        let (shards, tensors) = open_shards(dir, &index_path, &index)?;
        Ok(Self { dir: dir.to_owned(), config, shards, tensors })
    }

    /// The content of config.json, an object.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Reads an optional file; `None` when the folder lacks it.
    ///
    /// # Errors
    ///
    /// When it is there and cannot be read, or is a Git LFS pointer.
    pub fn file(&self, file: HfFile) -> Result<Option<Vec<u8>>, FolderError> {
        read(&self.dir.join(file.file_name()))
    }

    /// A tensor and its stored bytes, `None` when there is none of that name. No alignment is promised.
    pub fn tensor(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        self.shards[*self.tensors.get(name)?].1.tensor(name)
    }

    pub(crate) fn release(&self, name: &str, part: Range<usize>) {
        if let Some(&shard) = self.tensors.get(name) {
            self.shards[shard].1.release(name, part);
        }
    }

    /// All tensors, in the order of the header or the index.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter().filter_map(|(name, &shard)| Some(self.shards[shard].1.tensor(name)?.0))
    }

    /// Size of the weights files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|(_, file)| file.file_bytes()).sum()
    }

    /// Path, number of tensors and size of each of the weights files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, usize, u64)> {
        let tensors = |shard| self.tensors.values().filter(|&&of| of == shard).count();
        self.shards
            .iter()
            .enumerate()
            .map(move |(i, (path, file))| (path.as_path(), tensors(i), file.file_bytes()))
    }
}

/// Which, where, and what to do.
fn missing_shards(index: &Path, dir: &Path, missing: &[String], listed: usize, others: &[String]) -> String {
    const MOST: usize = 10;
    let (index, dir) = (index.display(), dir.display());
    let mut text = format!(
        "{index} lists files of weights ({listed}), of which {} not in {dir}: ",
        match missing.len() {
            1 => "1 is".to_owned(),
            n => format!("{n} are"),
        }
    );
    text += &missing.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if missing.len() > MOST {
        text += &format!(" and {} more", missing.len() - MOST);
    }
    if !others.is_empty() {
        text += &format!("; there are also {}, which it does not list", others.join(", "));
    }
    text + "; download the missing files to that folder, or give a folder that is complete"
}

type Shards = (Vec<(PathBuf, SafetensorsFile)>, IndexMap<String, usize>);

fn open_shards(dir: &Path, index_path: &Path, index: &Value) -> Result<Shards, FolderError> {
    let json = |message: String| FolderError::Json { path: index_path.to_owned(), message };
    let Some(weight_map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(json("no object \"weight_map\" from tensor to file".to_owned()));
    };
    if weight_map.is_empty() {
        return Err(FolderError::NoTensors { path: index_path.to_owned() });
    }
    let mut shards: IndexMap<&str, Option<SafetensorsFile>> = IndexMap::new();
    let mut tensors = IndexMap::new();
    for (name, file) in weight_map {
        let Some(file) = file.as_str() else {
            return Err(json(format!("the weight_map entry of {:?} is not a file name", clip(name))));
        };
        let place = || (index_path.to_owned(), clip(name), clip(file));
        // Only lexically: hub caches keep the files as links to elsewhere.
        let inside = Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
        if !inside || file.is_empty() || file.contains(['\\', '\0']) {
            let (path, tensor, file) = place();
            return Err(FolderError::Escape { path, tensor, file });
        }
        let shard = match shards.get_index_of(file) {
            Some(shard) => shard,
            None if shards.len() == MAX_SHARDS => {
                return Err(json(format!(
                    "it lists more than the {MAX_SHARDS} files that a model is opened from"
                )));
            }
            None => shards.insert_full(file, open_shard(&dir.join(file))?).0,
        };
        // Those that are not there are all named below.
        if shards[shard].as_ref().is_some_and(|shard| shard.tensor(name).is_none()) {
            let (path, tensor, file) = place();
            return Err(FolderError::NotInShard { path, tensor, file });
        }
        tensors.insert(name.clone(), shard);
    }
    let missing = shards.iter().filter(|(_, opened)| opened.is_none()).map(|(file, _)| of_missing(dir, file));
    let missing: Vec<String> = missing.collect();
    if !missing.is_empty() {
        let others = names(dir).into_iter().filter(|n| n.contains(".safetensors") && !n.ends_with(".json"));
        let others = others.filter(|name| !shards.contains_key(name.as_str())).take(3).collect();
        let (index, dir, listed) = (index_path.to_owned(), dir.to_owned(), shards.len());
        return Err(FolderError::MissingShards { index, dir, missing, listed, others });
    }
    let shards = shards.into_iter().filter_map(|(file, opened)| Some((dir.join(file), opened?)));
    Ok((shards.collect(), tensors))
}

/// `None` when there is no such file.
fn open_shard(path: &Path) -> Result<Option<SafetensorsFile>, FolderError> {
    let bytes = match Bytes::map(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FolderError::Io { path: path.to_owned(), source }),
    };
    if let Some(found) = Foreign::recognise(&bytes).filter(|&found| found != Foreign::Safetensors) {
        return Err(FolderError::Foreign { path: path.to_owned(), found });
    }
    match SafetensorsFile::new(bytes) {
        Ok(file) => Ok(Some(file)),
        Err(source) => Err(FolderError::Safetensors { path: path.to_owned(), source }),
    }
}

/// `None` when there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, FolderError> {
    match read_file(path) {
        Ok(bytes) => match Foreign::recognise(&bytes) {
            Some(found @ (Foreign::LfsPointer | Foreign::Empty)) => {
                Err(FolderError::Foreign { path: path.to_owned(), found })
            }
            _ => Ok(Some(bytes)),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FolderError::Io { path: path.to_owned(), source }),
    }
}

/// A JSON object; `None` when there is no such file.
fn read_json(path: &Path) -> Result<Option<Value>, FolderError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let json = |message: String| FolderError::Json { path: path.to_owned(), message };
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(object) if object.is_object() => Ok(Some(object)),
        Ok(_) => Err(json("not a JSON object".to_owned())),
        Err(e) => Err(json(format!("not valid JSON: {e}"))),
    }
}

/// What else the folder holds that its owner may have meant.
fn hint(dir: &Path) -> String {
    let names = names(dir);
    if names.iter().any(|name| name == SINGLE) && !dir.join(SINGLE).exists() {
        return format!("; {}", of_missing(dir, SINGLE));
    }
    // With weights of this name only the configuration can be missing.
    if dir.join(SINGLE).exists() {
        return format!("; it has {SINGLE}: download the {CONFIG} that belongs to it");
    }
    let find = |suffixes: &[&str]| names.iter().find(|name| suffixes.iter().any(|s| name.ends_with(s)));
    let gguf = || names.iter().filter(|name| name.ends_with(".gguf"));
    if let Some(first) = gguf().next() {
        let (first, n) = (dir.join(first), gguf().count());
        match n {
            1 => format!("; for the GGUF file in it give {}", first.display()),
            n => format!("; it has GGUF files ({n}): give the path of one, as {}", first.display()),
        }
    } else if let Some(shard) = find(&[".safetensors"]) {
        format!("; it has {shard}, but not under the names the format knows")
    } else if let Some(pickle) = find(&[".bin", ".pt", ".pth"]) {
        format!("; it has the pickle {pickle}, which is not read: convert it to safetensors")
    } else {
        String::new()
    }
}
