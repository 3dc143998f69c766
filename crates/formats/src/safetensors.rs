//! The safetensors container and the Hugging Face folder around it.
//!
//! ```text
//! header length u64, little-endian, at most 100 MB
//! header: a JSON object  name -> {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}
//!         and, optionally, "__metadata__" -> {string: string}
//! data:   offsets count from here; tensors fill it without holes or overlaps
//! ```
//!
//! Shapes are row-major, outermost first. The element types are those of the `safetensors` package; types that the
//! engine cannot compute with stay in the listing and are refused when such a tensor is asked for.

mod folder;
mod header;

use std::ops::Range;

use indexmap::IndexMap;
use tensor::DType;

use crate::Bytes;

pub use folder::{FolderError, HfFile, HfFolder};
pub use header::SafetensorsError;

/// Type, shape and place of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type as the file names it, as in `BF16`.
    pub type_name: String,
    /// Dimensions in row-major order, outermost first. Empty for a scalar.
    pub shape: Vec<usize>,
    /// The tensor's bytes in the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// The engine's type, or `None` when it has none for this one.
    pub fn dtype(&self) -> Option<DType> {
        match self.type_name.as_str() {
            "F32" => Some(DType::F32),
            "F16" => Some(DType::F16),
            "BF16" => Some(DType::BF16),
            _ => None,
        }
    }
}

/// A safetensors file: its bytes and their checked header.
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    bytes: Bytes,
    tensors: IndexMap<String, TensorInfo>,
}

impl SafetensorsFile {
    /// Reads and checks the header of a file given as bytes, which are kept.
    ///
    /// # Errors
    ///
    /// On anything that makes the file or a part of it unreadable; see [`SafetensorsError`].
    pub fn new(bytes: Bytes) -> Result<Self, SafetensorsError> {
        let tensors = header::parse(&bytes)?;
        Ok(Self { bytes, tensors })
    }

    /// A tensor and its stored bytes, `None` when there is none of that name. No alignment is promised.
    pub fn tensor(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        let info = self.tensors.get(name)?;
        Some((info, &self.bytes[info.range.clone()]))
    }

    fn release(&self, name: &str, part: Range<usize>) {
        if let Some(info) = self.tensors.get(name) {
            self.bytes.release(&info.range, part);
        }
    }

    /// All tensors, in the header's order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}
