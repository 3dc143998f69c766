//! Parsing and validation of the header.

use indexmap::IndexMap;

use super::cursor::{Cursor, Place};
use super::error::GgufError;
use super::metadata::{Array, GgufMetadata, Strings, Value};
use super::split::Split;
use super::{DEFAULT_ALIGNMENT, GgmlType, Gguf, TensorInfo};
use crate::sniff::clip;

/// Arrays of arrays may be this deep; files in use hold none or one level.
const MAX_NESTING: usize = 4;
/// GGML_MAX_DIMS.
const MAX_RANK: u32 = 4;
/// Least size of a pair: an empty key, the value's type, one byte.
const MIN_PAIR_BYTES: u64 = 8 + 4 + 1;
/// Least size of a tensor's description: an empty name, the rank, no dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// `head` holds everything before the data of a file of `len` bytes, and may hold more of it.
pub(super) fn parse(head: &[u8], len: u64) -> Result<Gguf, GgufError> {
    let mut cur = Cursor::new(head);
    let version = version(&mut cur)?;
    let tensor_count = cur.u64(Place::Header)?;
    let pair_count = cur.u64(Place::Header)?;
    let pair_count = cur.check_count(pair_count, "metadata pairs", MIN_PAIR_BYTES, Place::Header)?;
    cur.check_count(tensor_count, "tensors", MIN_TENSOR_BYTES, Place::Header)?;

    let metadata = metadata(&mut cur, pair_count)?;
    let alignment = metadata.get("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return Err(GgufError::Alignment(alignment));
    }
    let split = Split::of(&metadata)?;

    // Again, with what the metadata has left.
    let tensor_count = cur.check_count(tensor_count, "tensors", MIN_TENSOR_BYTES, Place::Header)?;
    let mut descriptions = IndexMap::new();
    for i in 0..tensor_count {
        let name = cur.string(Place::TensorName(i as u64))?;
        let description = description(&mut cur, name, alignment)?;
        if descriptions.insert(name, description).is_some() {
            return Err(GgufError::DuplicateTensor { tensor: clip(name) });
        }
    }

    let data_start = cur.position().checked_next_multiple_of(alignment.into());
    let data_start = data_start.and_then(|start| usize::try_from(start).ok()).unwrap_or(usize::MAX);
    let data_bytes = len.saturating_sub(data_start as u64);
    let mut tensors = IndexMap::with_capacity(tensor_count);
    for (name, d) in descriptions {
        let end = d.offset.checked_add(d.bytes).filter(|&end| end <= data_bytes);
        let Some(end) = end else {
            let (tensor, offset, bytes, have) = (clip(name), d.offset, d.bytes, data_bytes);
            return Err(GgufError::OutsideFile { tensor, offset, bytes, have });
        };
        // No overflow and no loss: both are at most the length of the file.
        let range = data_start + d.offset as usize..data_start + end as usize;
        let info = TensorInfo { name: name.to_owned(), ggml_type: d.ggml_type, shape: d.shape, range };
        tensors.insert(name.to_owned(), info);
    }
    check_disjoint(&tensors)?;
    // Without tensors, as the first shard of some splits, a file may end before the padding.
    let end =
        tensors.values().map(|info: &TensorInfo| info.range.end).max().unwrap_or(cur.position() as usize);
    // A file is padded to the alignment, or not.
    let ends = [Some(end), end.checked_next_multiple_of(alignment as usize)];
    let begins = |end: &usize| head.get(*end..).is_some_and(|rest| rest.starts_with(b"GGUF"));
    if let Some(end) = ends.into_iter().flatten().find(begins) {
        return Err(GgufError::Joined { end: end as u64 });
    }
    Ok(Gguf { version, alignment, split, metadata, tensors })
}

fn version(cur: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let before_gguf = |magic| Err(GgufError::BeforeGguf { magic });
    match cur.array(Place::Header)? {
        [b'G', b'G', b'U', b'F'] => (),
        // u32 constants, stored little-endian.
        [b'l', b'm', b'g', b'g'] => return before_gguf("ggml"),
        [b'f', b'm', b'g', b'g'] => return before_gguf("ggmf"),
        [b't', b'j', b'g', b'g'] => return before_gguf("ggjt"),
        found => return Err(GgufError::Magic { found }),
    }
    match cur.u32(Place::Header)? {
        version @ 2..=3 => Ok(version),
        version if (1..=3).contains(&version.swap_bytes()) => Err(GgufError::BigEndian),
        version => Err(GgufError::Version(version)),
    }
}

fn metadata(cur: &mut Cursor<'_>, count: usize) -> Result<GgufMetadata, GgufError> {
    let mut pairs = IndexMap::new();
    for i in 0..count {
        let key = cur.string(Place::Key(i as u64))?;
        let place = Place::Value(key);
        let value_type = cur.u32(place)?;
        let value = value(cur, value_type, place)?;
        if pairs.insert(key.to_owned(), value).is_some() {
            return Err(GgufError::DuplicateKey { key: clip(key) });
        }
    }
    Ok(GgufMetadata(pairs))
}

fn value(cur: &mut Cursor<'_>, value_type: u32, place: Place<'_>) -> Result<Value, GgufError> {
    Ok(match value_type {
        0 => Value::U8(u8::from_le_bytes(cur.array(place)?)),
        1 => Value::I8(i8::from_le_bytes(cur.array(place)?)),
        2 => Value::U16(u16::from_le_bytes(cur.array(place)?)),
        3 => Value::I16(i16::from_le_bytes(cur.array(place)?)),
        4 => Value::U32(u32::from_le_bytes(cur.array(place)?)),
        5 => Value::I32(i32::from_le_bytes(cur.array(place)?)),
        6 => Value::F32(f32::from_le_bytes(cur.array(place)?)),
        7 => Value::Bool(bool(cur.array::<1>(place)?[0], place)?),
        8 => Value::String(cur.string(place)?.to_owned()),
        9 => Value::Array(array(cur, place, 1)?),
        10 => Value::U64(u64::from_le_bytes(cur.array(place)?)),
        11 => Value::I64(i64::from_le_bytes(cur.array(place)?)),
        12 => Value::F64(f64::from_le_bytes(cur.array(place)?)),
        id => return Err(GgufError::ValueType { place: place.to_string(), id }),
    })
}

fn bool(byte: u8, place: Place<'_>) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::Bool { place: place.to_string(), found }),
    }
}

fn array(cur: &mut Cursor<'_>, place: Place<'_>, depth: usize) -> Result<Array, GgufError> {
    if depth > MAX_NESTING {
        return Err(GgufError::Nesting { place: place.to_string(), limit: MAX_NESTING });
    }
    let element_type = cur.u32(place)?;
    let count = cur.u64(place)?;
    macro_rules! plain {
        ($variant:ident, $type:ty) => {
            Array::$variant(plain(cur, count, place, <$type>::from_le_bytes)?)
        };
    }
    Ok(match element_type {
        0 => plain!(U8, u8),
        1 => plain!(I8, i8),
        2 => plain!(U16, u16),
        3 => plain!(I16, i16),
        4 => plain!(U32, u32),
        5 => plain!(I32, i32),
        6 => plain!(F32, f32),
        7 => {
            let count = cur.check_count(count, "bools", 1, place)?;
            let bytes = cur.take(count as u64, place)?;
            Array::Bool(bytes.iter().map(|&b| bool(b, place)).collect::<Result<_, _>>()?)
        }
        8 => {
            let count = cur.check_count(count, "strings", 8, place)?;
            let mut strings = Strings::with_capacity(count);
            for i in 0..count {
                strings.push(cur.string(place.element(i))?);
            }
            Array::String(strings)
        }
        9 => {
            let count = cur.check_count(count, "arrays", 4 + 8, place)?;
            let mut arrays = Vec::new();
            for _ in 0..count {
                arrays.push(array(cur, place, depth + 1)?);
            }
            Array::Array(arrays)
        }
        10 => plain!(U64, u64),
        11 => plain!(I64, i64),
        12 => plain!(F64, f64),
        id => return Err(GgufError::ValueType { place: place.to_string(), id }),
    })
}

fn plain<T, const N: usize>(
    cur: &mut Cursor<'_>,
    count: u64,
    place: Place<'_>,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let count = cur.check_count(count, "values", N as u64, place)?;
    // No overflow: the product has been compared with what is left.
    let bytes = cur.take(count as u64 * N as u64, place)?;
    Ok(bytes.as_chunks::<N>().0.iter().map(|&b| from_le_bytes(b)).collect())
}

/// A tensor's description, checked in itself.
struct Description {
    ggml_type: GgmlType,
    shape: Vec<usize>,
    /// From the start of the data section.
    offset: u64,
    bytes: u64,
}

fn description(cur: &mut Cursor<'_>, name: &str, alignment: u32) -> Result<Description, GgufError> {
    let place = Place::Tensor(name);
    let tensor = || clip(name);
    let rank = cur.u32(place)?;
    if rank > MAX_RANK {
        return Err(GgufError::Rank { tensor: tensor(), rank, limit: MAX_RANK });
    }
    let ne = (0..rank).map(|_| cur.u64(place)).collect::<Result<Vec<u64>, _>>()?;
    let id = cur.u32(place)?;
    let offset = cur.u64(place)?;
    if ne.contains(&0) {
        return Err(GgufError::Empty { tensor: tensor(), ne });
    }
    let Some(ggml_type) = GgmlType::from_id(id) else {
        return Err(match GgmlType::removed(id) {
            Some(name) => GgufError::RemovedType { tensor: tensor(), name },
            None => GgufError::UnknownType { tensor: tensor(), id },
        });
    };
    let (row, block_len) = (ne.first().copied().unwrap_or(1), ggml_type.block_len());
    if !row.is_multiple_of(block_len) {
        return Err(GgufError::PartialBlock { tensor: tensor(), row, name: ggml_type.name(), block_len });
    }
    let sized = || {
        let elements = ne.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
        let bytes = (elements / block_len).checked_mul(ggml_type.block_bytes())?;
        let shape = ne.iter().rev().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>()?;
        usize::try_from(elements).ok()?;
        Some((bytes, shape))
    };
    let Some((bytes, shape)) = sized() else {
        return Err(GgufError::Overflow { tensor: tensor(), ne });
    };
    if !offset.is_multiple_of(alignment.into()) {
        return Err(GgufError::Misaligned { tensor: tensor(), offset, alignment });
    }
    Ok(Description { ggml_type, shape, offset, bytes })
}

/// Tensors have at least one byte each, so sorted ranges overlap exactly when neighbours do.
fn check_disjoint(tensors: &IndexMap<String, TensorInfo>) -> Result<(), GgufError> {
    let mut sorted: Vec<_> = tensors.iter().map(|(name, info)| (info.range.clone(), name)).collect();
    sorted.sort_by_key(|(range, _)| range.start);
    for pair in sorted.windows(2) {
        let ((before, first), (after, second)) = (&pair[0], &pair[1]);
        if before.end > after.start {
            return Err(GgufError::Overlap { first: clip(first), second: clip(second) });
        }
    }
    Ok(())
}
