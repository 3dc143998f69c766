//! One view over both containers.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tensor::DType;

use crate::Bytes;
use crate::gguf::{self, GgufError, GgufFile, GgufMetadata, SplitError};
use crate::safetensors::{self, FolderError, HfFile, HfFolder};
use crate::sniff::Foreign;

/// The kind of container a checkpoint came in. Weight names, layouts and hyper-parameters depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Container {
    /// A GGUF file, or the shards of a split one.
    Gguf,
    /// A Hugging Face folder with safetensors weights.
    HuggingFace,
}

/// An opened checkpoint: hyper-parameters, tensors and tokenizer files. The data stays mapped while it lives.
#[derive(Clone, Debug)]
pub struct Checkpoint(Source);

#[derive(Clone, Debug)]
enum Source {
    Gguf(Box<GgufFile>),
    HuggingFace(Box<HfFolder>),
}

/// A tensor that the engine can compute with.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorView<'a> {
    /// Its name in the container.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Dimensions in row-major order, outermost first. Empty for a scalar.
    pub shape: Vec<usize>,
    /// The stored elements; exactly what type and shape need. No alignment is promised.
    pub bytes: &'a [u8],
}

/// A line of a checkpoint's table of contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorEntry<'a> {
    /// Its name in the container.
    pub name: &'a str,
    /// Element type as the container names it.
    pub type_name: &'a str,
    /// The engine's type, `None` when it cannot compute with this one.
    pub dtype: Option<DType>,
    /// Dimensions in row-major order, outermost first. Empty for a scalar.
    pub shape: &'a [usize],
    /// Stored size in bytes.
    pub bytes: usize,
}

/// A file that holds weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileEntry<'a> {
    /// Where it was opened; `None` when it was given as bytes.
    pub path: Option<&'a Path>,
    /// Tensors in it.
    pub tensors: usize,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Why a checkpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There is nothing of that name.
    #[error("{} does not exist: give the path of a GGUF file or of a Hugging Face checkpoint's folder", .path.display())]
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("{}: {found}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: Foreign,
    },
    /// The GGUF file is damaged or not supported.
    #[error("{}: {source}{}", .path.display(), .source.advice())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// The shards of a split GGUF model are not complete, or do not belong together.
    #[error("{}: {source}", .path.display())]
    Split {
        /// The shard that was opened, or the one that is wrong.
        path: PathBuf,
        /// What is wrong.
        source: Box<SplitError>,
    },
    /// The folder lacks something, or a file in it is damaged.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Why a tensor cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TensorError {
    /// There is none of that name.
    #[error("the checkpoint has no tensor {name:?}")]
    Missing {
        /// The name asked for.
        name: String,
    },
    /// The engine has no decoder for its type.
    #[error(
        "tensor {name:?} is stored as {type_name}, which is not supported ({} are): convert the model to one of these",
        supported()
    )]
    Unsupported {
        /// The tensor.
        name: String,
        /// Its type as the container names it.
        type_name: String,
    },
}

fn supported() -> String {
    DType::WEIGHTS.map(DType::name).join(", ")
}

impl CheckpointError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::NotFound => Self::NotFound { path: path.to_owned() },
            _ => Self::Io { path: path.to_owned(), source },
        }
    }
}

impl Checkpoint {
    /// Opens a GGUF file or a Hugging Face folder; see [`Bytes::map`] for what the files must not do meanwhile.
    ///
    /// Of a split GGUF model any shard will do: the others are found beside it by their names. So will a folder whose only
    /// weights are the shards of one model.
    ///
    /// # Errors
    ///
    /// When there is no readable checkpoint at `path`; the message says what is there instead, where it can be told.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let open_gguf = |path: &Path| Ok(Self(Source::Gguf(Box::new(gguf::open::open(path)?))));
        if !std::fs::metadata(path).map_err(|source| CheckpointError::io(path, source))?.is_dir() {
            return open_gguf(path);
        }
        match HfFolder::open(path) {
            Ok(folder) => Ok(Self(Source::HuggingFace(Box::new(folder)))),
            Err(error @ (FolderError::NoConfig { .. } | FolderError::NoWeights { .. })) => {
                gguf::open::only_split(path).map_or(Err(error.into()), |shard| open_gguf(&shard))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A GGUF file that is already in memory: a `Vec<u8>`, an `Arc<[u8]>` or [`Bytes`].
    ///
    /// # Errors
    ///
    /// As [`Gguf::parse`](crate::gguf::Gguf::parse).
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, GgufError> {
        Ok(Self(Source::Gguf(Box::new(GgufFile::new(bytes.into())?))))
    }

    /// All the shards of a split GGUF model that are already in memory, in any order; a single file that is whole will do too.
    ///
    /// # Errors
    ///
    /// When a shard cannot be read or is missing, or they do not belong together.
    pub fn from_shards<B: Into<Bytes>>(shards: impl IntoIterator<Item = B>) -> Result<Self, SplitError> {
        let file = GgufFile::from_shards(shards.into_iter().map(Into::into))?;
        Ok(Self(Source::Gguf(Box::new(file))))
    }

    /// The kind of container.
    pub fn container(&self) -> Container {
        match self.0 {
            Source::Gguf(_) => Container::Gguf,
            Source::HuggingFace(_) => Container::HuggingFace,
        }
    }

    /// A tensor by its name in the container.
    ///
    /// # Errors
    ///
    /// When there is none, or its element type is one the engine cannot compute with.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, TensorError> {
        let Some((entry, bytes)) = self.find(name) else {
            return Err(TensorError::Missing { name: name.to_owned() });
        };
        let Some(dtype) = entry.dtype else {
            return Err(TensorError::Unsupported {
                name: name.to_owned(),
                type_name: entry.type_name.to_owned(),
            });
        };
        Ok(TensorView { name: entry.name, dtype, shape: entry.shape.to_owned(), bytes })
    }

    /// Gives back the memory that a mapped tensor's pages hold, after its bytes were copied: so that the file and what was
    /// made of it never count twice. The tensor can still be read.
    pub fn release(&self, name: &str) {
        self.release_part(name, 0..usize::MAX);
    }

    /// As [`Checkpoint::release`], for some of the tensor's bytes. Of pages that others share nothing has to be known: whoever
    /// needs them again reads them again.
    pub fn release_part(&self, name: &str, bytes: Range<usize>) {
        match &self.0 {
            Source::Gguf(file) => file.release(name, bytes),
            Source::HuggingFace(folder) => folder.release(name, bytes),
        }
    }

    /// The names of all tensors, in the container's order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors().map(|entry| entry.name)
    }

    /// The table of contents, in the container's order; also tensors the engine cannot compute with.
    pub fn tensors(&self) -> Box<dyn Iterator<Item = TensorEntry<'_>> + '_> {
        match &self.0 {
            Source::Gguf(file) => Box::new(file.tensors().map(TensorEntry::from)),
            Source::HuggingFace(folder) => Box::new(folder.tensors().map(TensorEntry::from)),
        }
    }

    /// The GGUF file or files and their headers, when that is the container.
    pub fn gguf_file(&self) -> Option<&GgufFile> {
        match &self.0 {
            Source::Gguf(file) => Some(file),
            Source::HuggingFace(_) => None,
        }
    }

    /// The metadata of a GGUF file, when that is the container.
    pub fn gguf(&self) -> Option<&GgufMetadata> {
        self.gguf_file().map(|file| file.metadata())
    }

    /// The content of config.json, an object, when the container is a Hugging Face folder.
    pub fn config(&self) -> Option<&serde_json::Value> {
        match &self.0 {
            Source::Gguf(_) => None,
            Source::HuggingFace(folder) => Some(folder.config()),
        }
    }

    /// Reads an optional file of a Hugging Face folder; `None` when it is absent, as always beside a GGUF file.
    ///
    /// # Errors
    ///
    /// When the file is there and cannot be read, or is a Git LFS pointer.
    pub fn hf_file(&self, file: HfFile) -> Result<Option<Vec<u8>>, CheckpointError> {
        match &self.0 {
            Source::Gguf(_) => Ok(None),
            Source::HuggingFace(folder) => Ok(folder.file(file)?),
        }
    }

    /// Size in bytes of the file or files that hold the weights.
    pub fn file_bytes(&self) -> u64 {
        match &self.0 {
            Source::Gguf(file) => file.file_bytes(),
            Source::HuggingFace(folder) => folder.file_bytes(),
        }
    }

    /// The file or files that hold the weights, in order.
    pub fn files(&self) -> Vec<FileEntry<'_>> {
        match &self.0 {
            Source::Gguf(file) => file.shards().iter().map(FileEntry::from).collect(),
            Source::HuggingFace(folder) => {
                let files = folder.files();
                files.map(|(path, tensors, bytes)| FileEntry { path: Some(path), tensors, bytes }).collect()
            }
        }
    }

    fn find(&self, name: &str) -> Option<(TensorEntry<'_>, &[u8])> {
        match &self.0 {
            Source::Gguf(file) => file.tensor(name).map(|(info, bytes)| (info.into(), bytes)),
            Source::HuggingFace(folder) => folder.tensor(name).map(|(info, bytes)| (info.into(), bytes)),
        }
    }
}

impl<'a> From<&'a gguf::Shard> for FileEntry<'a> {
    fn from(shard: &'a gguf::Shard) -> Self {
        let tensors = shard.header().tensors().len();
        Self { path: shard.path(), tensors, bytes: shard.file_bytes() }
    }
}

impl<'a> From<&'a gguf::TensorInfo> for TensorEntry<'a> {
    fn from(info: &'a gguf::TensorInfo) -> Self {
        let (name, shape) = (info.name.as_str(), info.shape.as_slice());
        let (type_name, dtype) = (info.ggml_type.name(), info.ggml_type.dtype());
        Self { name, type_name, dtype, shape, bytes: info.range.len() }
    }
}

impl<'a> From<&'a safetensors::TensorInfo> for TensorEntry<'a> {
    fn from(info: &'a safetensors::TensorInfo) -> Self {
        let (name, shape) = (info.name.as_str(), info.shape.as_slice());
        let (type_name, dtype) = (info.type_name.as_str(), info.dtype());
        Self { name, type_name, dtype, shape, bytes: info.range.len() }
    }
}
