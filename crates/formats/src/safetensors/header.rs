//! Parsing and validation of the header.

use std::fmt;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::TensorInfo;
use crate::sniff::clip;

/// The format's own limit on the header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Why bytes are not a safetensors file this crate reads.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum SafetensorsError {
    /// Not even a header length.
    #[error("{0} bytes are too few for a safetensors file")]
    TooShort(usize),
    /// The header does not fit.
    #[error(
        "the header claims {claimed} bytes, of which {left} are there: \
         the file is truncated, or not a safetensors file"
    )]
    HeaderLen { claimed: u64, left: u64 },
    /// The header is longer than the format allows.
    #[error("the header claims {claimed} bytes, more than the {MAX_HEADER_BYTES} the format allows")]
    HeaderLimit { claimed: u64 },
    /// The header is not the JSON it should be.
    #[error("the header is not what the format says: {0}")]
    Header(String),
    /// Two tensors of one name.
    #[error("tensor {tensor:?} occurs twice")]
    Duplicate { tensor: String },
    /// More elements than can be counted.
    #[error("tensor {tensor:?} has shape {shape:?}, whose size overflows")]
    Overflow { tensor: String, shape: Vec<u64> },
    /// Bytes and shape disagree.
    #[error("tensor {tensor:?} has {bytes} bytes, but shape {shape:?} of {type_name} needs {need}")]
    Size { tensor: String, bytes: u64, shape: Vec<u64>, type_name: String, need: u64 },
    /// An end before its begin.
    #[error("tensor {tensor:?} has data offsets [{begin}, {end}], which run backwards")]
    Backwards { tensor: String, begin: u64, end: u64 },
    /// Data past the end of the file.
    #[error(
        "tensor {tensor:?} ends at {end} of the data section, which has {have} bytes: \
         the file is truncated or damaged"
    )]
    OutsideFile { tensor: String, end: u64, have: u64 },
    /// A hole or an overlap.
    #[error(
        "tensor {tensor:?} begins at {begin} of the data section where {expected} is due (no holes, no overlaps)"
    )]
    NotContiguous { tensor: String, begin: u64, expected: u64 },
    /// Bytes that belong to no tensor.
    #[error("the data section has {have} bytes, of which the tensors take {taken}")]
    Trailing { taken: u64, have: u64 },
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's entries in order, also those of one name.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor descriptions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let entry = map
                            .next_value()
                            .map_err(|e| A::Error::custom(format_args!("tensor {:?}: {e}", clip(&name))))?;
                        entries.push((name, entry));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

/// Bits per element of the format's types; `None` for types newer than this list.
fn type_bits(name: &str) -> Option<u64> {
    Some(match name {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

pub(super) fn parse(file: &[u8]) -> Result<IndexMap<String, TensorInfo>, SafetensorsError> {
    let Some((len, rest)) = file.split_first_chunk() else {
        return Err(SafetensorsError::TooShort(file.len()));
    };
    let claimed = u64::from_le_bytes(*len);
    let split = usize::try_from(claimed).ok().and_then(|len| rest.split_at_checked(len));
    let Some((header, data)) = split else {
        return Err(SafetensorsError::HeaderLen { claimed, left: rest.len() as u64 });
    };
    if claimed > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderLimit { claimed });
    }
    // So says the format, which leaves no room for a file that is two things at once.
    if header.first() != Some(&b'{') {
        return Err(SafetensorsError::Header("it does not begin with a brace".to_owned()));
    }
    let Entries(entries) =
        serde_json::from_slice(header).map_err(|e| SafetensorsError::Header(e.to_string()))?;

    let have = data.len() as u64;
    let data_start = file.len() - data.len();
    let mut tensors = IndexMap::new();
    for (name, entry) in entries {
        let (begin, end) = entry.data_offsets;
        let tensor = || clip(&name);
        if begin > end {
            return Err(SafetensorsError::Backwards { tensor: tensor(), begin, end });
        }
        if end > have {
            return Err(SafetensorsError::OutsideFile { tensor: tensor(), end, have });
        }
        let Some((shape, elements)) = sized(&entry.shape) else {
            return Err(SafetensorsError::Overflow { tensor: tensor(), shape: entry.shape });
        };
        if let Some(bits) = type_bits(&entry.dtype) {
            let Some(need) = elements.checked_mul(bits).map(|bits| bits.div_ceil(8)) else {
                return Err(SafetensorsError::Overflow { tensor: tensor(), shape: entry.shape });
            };
            if need != end - begin {
                let (tensor, bytes, shape, type_name) = (tensor(), end - begin, entry.shape, entry.dtype);
                return Err(SafetensorsError::Size { tensor, bytes, shape, type_name, need });
            }
        }
        // No loss: both are at most the length of the data.
        let range = data_start + begin as usize..data_start + end as usize;
        if tensors.contains_key(&name) {
            return Err(SafetensorsError::Duplicate { tensor: tensor() });
        }
        let info = TensorInfo { name: name.clone(), type_name: entry.dtype, shape, range };
        tensors.insert(name, info);
    }
    check_contiguous(&tensors, data_start, file.len())?;
    Ok(tensors)
}

/// The shape in this machine's integers and the number of elements.
fn sized(shape: &[u64]) -> Option<(Vec<usize>, u64)> {
    let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
    usize::try_from(elements).ok()?;
    let shape = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
    Some((shape, elements))
}

fn check_contiguous(
    tensors: &IndexMap<String, TensorInfo>,
    data_start: usize,
    data_end: usize,
) -> Result<(), SafetensorsError> {
    let mut sorted: Vec<_> =
        tensors.iter().map(|(name, info)| (info.range.start, info.range.end, name)).collect();
    sorted.sort();
    let mut due = data_start;
    for (start, end, name) in sorted {
        if start != due {
            let (begin, expected) = ((start - data_start) as u64, (due - data_start) as u64);
            return Err(SafetensorsError::NotContiguous { tensor: clip(name), begin, expected });
        }
        due = end;
    }
    if due != data_end {
        let (taken, have) = ((due - data_start) as u64, (data_end - data_start) as u64);
        return Err(SafetensorsError::Trailing { taken, have });
    }
    Ok(())
}
