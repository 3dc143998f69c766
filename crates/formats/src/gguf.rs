//! The GGUF container, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF"  version u32  tensor count u64  metadata count u64
//! metadata:  key string, value type u32, value                                        each
//! tensors:   name string, rank u32, dims u64 innermost first, type u32, offset u64    each
//! padding to general.alignment (32 unless the metadata says otherwise)
//! tensor data; offsets count from here and are multiples of the alignment
//! ```
//!
//! A string is a u64 length in bytes and UTF-8 text; an array is an element type u32, a count u64 and the elements.
//! [`Gguf::parse`] checks all of it before it returns, so that later accesses cannot fail.
//!
//! A split model is several such files, `NAME-00001-of-00003.gguf` and so on, each with a data section of its own. Their
//! keys `split.no`, `split.count` and `split.tensors.count` say which shard each is, how many there are, and how many
//! tensors they hold together; the first has the model's metadata, and may have no tensors. [`GgufFile`] is all of them.

mod cursor;
mod error;
mod file;
mod ggml_type;
mod metadata;
pub(crate) mod open;
mod read;
mod split;
mod write;

use std::ops::Range;

use indexmap::IndexMap;

pub use error::GgufError;
pub use file::{GgufFile, Shard};
pub use ggml_type::GgmlType;
pub use metadata::{Array, FromValue, GgufMetadata, MetaError, Strings, Value};
pub use split::{ShardName, Split, SplitError};
pub use write::{GgufWriter, Head, WriteError};

/// Alignment of tensor data when `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The header of a GGUF file, checked against the file's size.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    alignment: u32,
    split: Option<Split>,
    metadata: GgufMetadata,
    tensors: IndexMap<String, TensorInfo>,
}

/// Type, shape and place of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type, which the engine may or may not know: [`GgmlType::dtype`].
    pub ggml_type: GgmlType,
    /// Dimensions in row-major order, outermost first: the reverse of the file's. Empty for a scalar.
    pub shape: Vec<usize>,
    /// The tensor's bytes in the file.
    pub range: Range<usize>,
}

impl Gguf {
    /// Reads and checks the header of the file whose whole content is `file`.
    ///
    /// # Errors
    ///
    /// On anything that makes the file or a part of it unreadable; see [`GgufError`].
    pub fn parse(file: &[u8]) -> Result<Self, GgufError> {
        read::parse(file, file.len() as u64)
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes, a power of two.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The file's place in a split model; `None` when it is whole.
    pub fn split(&self) -> Option<Split> {
        self.split
    }

    /// The metadata.
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.values()
    }
}
