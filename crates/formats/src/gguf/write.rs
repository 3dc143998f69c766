//! Writing GGUF files.

use std::ops::Range;

use indexmap::IndexMap;

use super::metadata::{Array, GgufMetadata, Value};
use super::{DEFAULT_ALIGNMENT, GgmlType, GgufError, MetaError};

/// Collects metadata and tensors, then lays out a version 3 file.
///
/// Data is borrowed until then, or only declared and written by the caller where [`GgufWriter::head`] says, so that a file
/// may be larger than memory. `general.alignment`, if it is among the metadata, decides the layout.
#[derive(Clone, Debug, Default)]
pub struct GgufWriter<'a> {
    metadata: GgufMetadata,
    tensors: IndexMap<String, Tensor<'a>>,
}

#[derive(Clone, Debug)]
struct Tensor<'a> {
    ggml_type: GgmlType,
    shape: Vec<usize>,
    len: u64,
    /// `None` when the tensor is only declared.
    bytes: Option<&'a [u8]>,
}

/// A file up to its data, and where the data belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The file's first bytes.
    pub bytes: Vec<u8>,
    /// For each tensor, in the order they were set: its place in the file.
    pub places: Vec<Range<u64>>,
    /// Length of the file; what no tensor covers behind the head is zero.
    pub len: u64,
}

/// Why a file cannot be written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WriteError {
    /// The bytes of a tensor are not what its type and shape need.
    #[error("tensor {tensor:?}: {shape:?} elements of {name} do not take {bytes} bytes")]
    Size {
        /// The tensor.
        tensor: String,
        /// Dimensions, outermost first.
        shape: Vec<usize>,
        /// Element type.
        name: &'static str,
        /// Bytes given.
        bytes: usize,
    },
    /// There is no number for the tensor's size.
    #[error("tensor {tensor:?}: {shape:?} elements are more than a file can hold")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Dimensions, outermost first.
        shape: Vec<usize>,
    },
    /// The tensor was declared without data.
    #[error("tensor {tensor:?} was declared without data: only the head of the file can be made")]
    NoData {
        /// The tensor.
        tensor: String,
    },
    /// `general.alignment` is not a u32.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The file would be one that the reader refuses.
    #[error("the file would not be readable: {0}")]
    Unreadable(#[from] GgufError),
}

impl<'a> GgufWriter<'a> {
    /// A writer of a file without metadata and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metadata value; the last one of a key counts.
    pub fn metadata(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.0.insert(key.to_owned(), value);
        self
    }

    /// Sets a tensor, its shape outermost dimension first; the last one of a name counts.
    ///
    /// # Errors
    ///
    /// When `bytes` is not as long as type and shape say.
    pub fn tensor(
        &mut self,
        name: &str,
        ggml_type: GgmlType,
        shape: &[usize],
        bytes: &'a [u8],
    ) -> Result<&mut Self, WriteError> {
        let len = stored_bytes(ggml_type, shape);
        if len != Some(bytes.len() as u64) {
            let (tensor, shape) = (name.to_owned(), shape.to_owned());
            return Err(WriteError::Size { tensor, shape, name: ggml_type.name(), bytes: bytes.len() });
        }
        let len = bytes.len() as u64;
        let tensor = Tensor { ggml_type, shape: shape.to_owned(), len, bytes: Some(bytes) };
        self.tensors.insert(name.to_owned(), tensor);
        Ok(self)
    }

    /// As [`GgufWriter::tensor`], for data that the caller writes.
    ///
    /// # Errors
    ///
    /// When there is no number for the size of so many elements.
    pub fn declare(
        &mut self,
        name: &str,
        ggml_type: GgmlType,
        shape: &[usize],
    ) -> Result<&mut Self, WriteError> {
        let Some(len) = stored_bytes(ggml_type, shape) else {
            return Err(WriteError::TooLarge { tensor: name.to_owned(), shape: shape.to_owned() });
        };
        let tensor = Tensor { ggml_type, shape: shape.to_owned(), len, bytes: None };
        self.tensors.insert(name.to_owned(), tensor);
        Ok(self)
    }

    /// The file up to its data.
    ///
    /// # Errors
    ///
    /// When the result is not a file this crate reads, as with rows that end inside a block.
    pub fn head(&self) -> Result<Head, WriteError> {
        let alignment: u32 = self.metadata.get("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() {
            return Err(GgufError::Alignment(alignment).into());
        }
        let pad = |len: u64| len.checked_next_multiple_of(alignment.into()).unwrap_or(u64::MAX);
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            string(&mut out, key);
            out.extend(value_type(value).to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        let mut places = vec![];
        for (name, tensor) in &self.tensors {
            string(&mut out, name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|&dim| out.extend((dim as u64).to_le_bytes()));
            out.extend(tensor.ggml_type.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            places.push(offset..offset.saturating_add(tensor.len));
            offset = pad(offset.saturating_add(tensor.len));
        }
        let start = pad(out.len() as u64);
        out.resize(start as usize, 0);
        let place = |p: Range<u64>| start.saturating_add(p.start)..start.saturating_add(p.end);
        let places = places.into_iter().map(place).collect();
        let head = Head { bytes: out, places, len: start.saturating_add(offset) };
        super::read::parse(&head.bytes, head.len)?;
        Ok(head)
    }

    /// The file.
    ///
    /// # Errors
    ///
    /// As [`GgufWriter::head`], and when a tensor was only declared.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteError> {
        let Head { bytes: mut out, places, len } = self.head()?;
        for ((name, tensor), place) in self.tensors.iter().zip(places) {
            let bytes = tensor.bytes.ok_or_else(|| WriteError::NoData { tensor: name.clone() })?;
            out.resize(place.start as usize, 0);
            out.extend(bytes);
        }
        out.resize(len as usize, 0);
        Ok(out)
    }
}

/// Bytes of so many elements; of rows that end inside a block, what the reader's rule for whole ones says.
fn stored_bytes(ggml_type: GgmlType, shape: &[usize]) -> Option<u64> {
    let row_blocks = shape.last().copied().unwrap_or(1) as u64 / ggml_type.block_len();
    let rows = shape.iter().rev().skip(1).try_fold(1u64, |n, &dim| n.checked_mul(dim as u64))?;
    rows.checked_mul(row_blocks)?.checked_mul(ggml_type.block_bytes())
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value_type(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => out.extend(x.to_le_bytes()),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::String(x) => string(out, x),
        Value::Array(x) => put_array(out, x),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    macro_rules! put {
        ($type:literal, $elements:ident) => {{
            out.extend(u32::to_le_bytes($type));
            out.extend(($elements.len() as u64).to_le_bytes());
        }};
        ($type:literal, $elements:ident plain) => {{
            put!($type, $elements);
            $elements.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(xs) => put!(0, xs plain),
        Array::I8(xs) => put!(1, xs plain),
        Array::U16(xs) => put!(2, xs plain),
        Array::I16(xs) => put!(3, xs plain),
        Array::U32(xs) => put!(4, xs plain),
        Array::I32(xs) => put!(5, xs plain),
        Array::F32(xs) => put!(6, xs plain),
        Array::Bool(xs) => {
            put!(7, xs);
            out.extend(xs.iter().map(|&x| u8::from(x)));
        }
        Array::String(xs) => {
            put!(8, xs);
            xs.iter().for_each(|x| string(out, x));
        }
        Array::Array(xs) => {
            put!(9, xs);
            xs.iter().for_each(|x| put_array(out, x));
        }
        Array::U64(xs) => put!(10, xs plain),
        Array::I64(xs) => put!(11, xs plain),
        Array::F64(xs) => put!(12, xs plain),
    }
}
