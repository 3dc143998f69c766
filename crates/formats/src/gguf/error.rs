//! What can be wrong with a GGUF file.

use super::metadata::MetaError;

/// Why bytes are not a GGUF file this crate reads. Offsets and sizes are in bytes from the start of the file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
#[non_exhaustive]
pub enum GgufError {
    /// Another kind of file.
    #[error("not a GGUF file: it begins with \"{}\" instead of \"GGUF\"", .found.escape_ascii())]
    Magic { found: [u8; 4] },
    /// A file of the formats before GGUF.
    #[error("a {magic} file, the format before GGUF: convert the original checkpoint to GGUF")]
    BeforeGguf { magic: &'static str },
    /// Byte order.
    #[error("a big-endian GGUF file: only little-endian files are read; convert it (gguf_convert_endian)")]
    BigEndian,
    /// Version 1, or one from the future.
    #[error("GGUF version {0}: versions 2 and 3 are read")]
    Version(u32),
    /// The file ends early.
    #[error("the file ends inside {place}: {need} bytes are needed at offset {at}, {left} are left")]
    Truncated { place: String, need: u64, at: u64, left: u64 },
    /// A count that the rest of the file cannot hold.
    #[error("{place} claims {count} {items}, but the {left} bytes left cannot hold them")]
    Count { place: String, count: u64, items: &'static str, left: u64 },
    /// A string that is not text.
    #[error("{place} is not valid UTF-8")]
    Utf8 { place: String },
    /// Two entries of one name.
    #[error("metadata key {key:?} occurs twice")]
    DuplicateKey { key: String },
    /// An unknown kind of value.
    #[error("{place} has value type {id}, which does not exist")]
    ValueType { place: String, id: u32 },
    /// A truth value that is neither.
    #[error("{place} is a bool stored as {found} (0 and 1 are valid)")]
    Bool { place: String, found: u8 },
    /// Arrays of arrays of arrays ...
    #[error("{place} nests arrays more than {limit} deep")]
    Nesting { place: String, limit: usize },
    /// A metadata value that the reader itself needs is not what it must be.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// `general.alignment` is not usable.
    #[error("general.alignment is {0}, not a power of two")]
    Alignment(u32),
    /// More shards than are opened at once.
    #[error(
        "split.count claims {count} shards, which are more files than the {limit} that a model is opened from"
    )]
    SplitCount { count: u64, limit: u64 },
    /// A shard beyond the last.
    #[error("split.no is {no}, and counts from 0 to below split.count, which is {count}")]
    SplitNumber { no: u64, count: u64 },
    /// One shard given where a whole file was expected.
    #[error(
        "shard {number} of {count} of a split model, which is no model by itself: give all the shards together, \
         or merge them into one file (llama-gguf-split --merge)"
    )]
    Split { number: u32, count: u32 },
    /// Shards of a model, one behind the other.
    #[error(
        "several GGUF files in one, as `cat` joins them; the first ends at byte {end}. Shards of a split model stay apart: \
         fetch them again, or cut the file apart there and name them NAME-00001-of-0000N.gguf and so on, then give any \
         of them; llama-gguf-split --merge makes one file of them"
    )]
    Joined { end: u64 },
    /// Two tensors of one name.
    #[error("tensor {tensor:?} occurs twice")]
    DuplicateTensor { tensor: String },
    /// More dimensions than GGML has.
    #[error("tensor {tensor:?} has {rank} dimensions (at most {limit} are valid)")]
    Rank { tensor: String, rank: u32, limit: u32 },
    /// A tensor without elements.
    #[error("tensor {tensor:?} has dimensions {ne:?} (innermost first), one of them zero")]
    Empty { tensor: String, ne: Vec<u64> },
    /// More elements or bytes than can be counted.
    #[error("tensor {tensor:?} has dimensions {ne:?} (innermost first), whose size overflows")]
    Overflow { tensor: String, ne: Vec<u64> },
    /// A type number GGML does not have.
    #[error("tensor {tensor:?} has type {id}, which this version does not know")]
    UnknownType { tensor: String, id: u32 },
    /// A type GGML no longer has.
    #[error("tensor {tensor:?} has type {name}, which GGML has removed: quantise the model again")]
    RemovedType { tensor: String, name: &'static str },
    /// Rows end inside a block.
    #[error("tensor {tensor:?} has rows of {row} elements, which do not fill {name} blocks of {block_len}")]
    PartialBlock { tensor: String, row: u64, name: &'static str, block_len: u64 },
    /// An offset that breaks the alignment.
    #[error(
        "tensor {tensor:?} begins at {offset} of the data section, not a multiple of the alignment {alignment}"
    )]
    Misaligned { tensor: String, offset: u64, alignment: u32 },
    /// Data past the end of the file.
    #[error(
        "tensor {tensor:?} needs {bytes} bytes at {offset} of the data section, which has {have}: \
         the file is truncated or damaged"
    )]
    OutsideFile { tensor: String, offset: u64, bytes: u64, have: u64 },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap { first: String, second: String },
}

impl GgufError {
    /// What to do about it, as the end of a sentence.
    pub(crate) fn advice(&self) -> &'static str {
        const WHOLE: &str = "; the download may not have finished: fetch the file again and compare its size or checksum \
                             with those at its source";
        const WRITTEN: &str =
            "; the file is damaged or was written wrongly: fetch it again, or convert the model again";
        match self {
            GgufError::Magic { .. } => "; give a GGUF file, or the folder of a Hugging Face checkpoint",
            GgufError::Version(1) => "; convert the model again with a current converter",
            GgufError::Version(_) | GgufError::UnknownType { .. } => {
                "; the file is damaged, or newer than this program: fetch it again, or choose another file of the model"
            }
            GgufError::Truncated { .. } | GgufError::Count { .. } | GgufError::OutsideFile { .. } => WHOLE,
            GgufError::Utf8 { .. }
            | GgufError::DuplicateKey { .. }
            | GgufError::ValueType { .. }
            | GgufError::Bool { .. }
            | GgufError::Nesting { .. }
            | GgufError::Meta(_)
            | GgufError::Alignment(_)
            | GgufError::SplitCount { .. }
            | GgufError::SplitNumber { .. }
            | GgufError::DuplicateTensor { .. }
            | GgufError::Rank { .. }
            | GgufError::Empty { .. }
            | GgufError::Overflow { .. }
            | GgufError::PartialBlock { .. }
            | GgufError::Misaligned { .. }
            | GgufError::Overlap { .. } => WRITTEN,
            // They say it themselves.
            GgufError::BeforeGguf { .. }
            | GgufError::BigEndian
            | GgufError::Split { .. }
            | GgufError::Joined { .. }
            | GgufError::RemovedType { .. } => "",
        }
    }
}
