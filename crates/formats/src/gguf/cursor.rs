//! A checked walk over the header.

use std::fmt;

use super::error::GgufError;
use crate::sniff::clip;

/// What is being read, for error messages.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Header,
    Key(u64),
    Value(&'a str),
    Element(&'a str, usize),
    TensorName(u64),
    Tensor(&'a str),
}

impl<'a> Place<'a> {
    /// An element of the array that is the value here.
    pub(super) fn element(self, index: usize) -> Self {
        match self {
            Place::Value(key) => Place::Element(key, index),
            place => place,
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Place::Header => f.write_str("the header"),
            Place::Key(i) => write!(f, "metadata key number {i}"),
            Place::Value(key) => write!(f, "the value of {:?}", clip(key)),
            Place::Element(key, i) => write!(f, "element {i} of {:?}", clip(key)),
            Place::TensorName(i) => write!(f, "the name of tensor number {i}"),
            Place::Tensor(name) => write!(f, "the description of tensor {:?}", clip(name)),
        }
    }
}

/// A position in the file; every read is checked against what is left.
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { file, at: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn left(&self) -> u64 {
        (self.file.len() - self.at) as u64
    }

    /// The next `need` bytes.
    pub(super) fn take(&mut self, need: u64, place: Place<'_>) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(need).ok().and_then(|need| self.file[self.at..].get(..need));
        let Some(taken) = taken else {
            let (at, left) = (self.position(), self.left());
            return Err(GgufError::Truncated { place: place.to_string(), need, at, left });
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, place: Place<'_>) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, place)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, place: Place<'_>) -> Result<u32, GgufError> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, place: Place<'_>) -> Result<u64, GgufError> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A string: its length in bytes as u64, then UTF-8 without a terminator.
    pub(super) fn string(&mut self, place: Place<'_>) -> Result<&'a str, GgufError> {
        let len = self.u64(place)?;
        let bytes = self.take(len, place)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { place: place.to_string() })
    }

    /// Refuses a count of items of at least `min_bytes` each that the rest of the file cannot hold, so that whatever
    /// is allocated for them is at most a small multiple of bytes that exist.
    pub(super) fn check_count(
        &self,
        count: u64,
        items: &'static str,
        min_bytes: u64,
        place: Place<'_>,
    ) -> Result<usize, GgufError> {
        let left = self.left();
        match (count.checked_mul(min_bytes), usize::try_from(count)) {
            (Some(bytes), Ok(count)) if bytes <= left => Ok(count),
            _ => Err(GgufError::Count { place: place.to_string(), count, items, left }),
        }
    }
}
