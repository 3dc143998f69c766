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

mod cursor;
mod error;
mod ggml_type;
mod metadata;
mod read;
mod write;

use std::ops::Range;

use indexmap::IndexMap;

use crate::Bytes;

pub use error::GgufError;
pub use ggml_type::GgmlType;
pub use metadata::{Array, FromValue, GgufMetadata, MetaError, Strings, Value};
pub use write::{GgufWriter, Head, WriteError};

/// Alignment of tensor data when `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The header of a GGUF file, checked against the file's size.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    alignment: u32,
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

/// A GGUF file: its bytes and their checked header.
#[derive(Clone, Debug)]
pub struct GgufFile {
    bytes: Bytes,
    header: Gguf,
}

impl GgufFile {
    /// Reads and checks the header of a file given as bytes, which are kept.
    ///
    /// # Errors
    ///
    /// As [`Gguf::parse`].
    pub fn new(bytes: Bytes) -> Result<Self, GgufError> {
        let header = Gguf::parse(&bytes)?;
        Ok(Self { bytes, header })
    }

    /// The header.
    pub fn header(&self) -> &Gguf {
        &self.header
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// A tensor and its stored bytes, `None` when there is none of that name.
    ///
    /// In a mapped file the bytes are aligned as the format says; in memory no alignment is promised.
    pub fn tensor(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        let info = self.header.tensor(name)?;
        Some((info, &self.bytes[info.range.clone()]))
    }

    pub(crate) fn release(&self, name: &str) {
        if let Some(info) = self.header.tensor(name) {
            self.bytes.release(info.range.clone());
        }
    }
}
