//! The element types a GGUF file may name.

use tensor::DType;

/// An element type of GGML: every one that a file may hold, also those this engine cannot compute with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GgmlType {
    id: u32,
    name: &'static str,
    block_len: u16,
    block_bytes: u16,
}

const fn ty(id: u32, name: &'static str, block_len: u16, block_bytes: u16) -> GgmlType {
    GgmlType { id, name, block_len, block_bytes }
}

/// `enum ggml_type` with the block sizes of `ggml-common.h`. Missing numbers are types GGML has removed.
const TYPES: &[GgmlType] = &[
    ty(0, "F32", 1, 4),
    ty(1, "F16", 1, 2),
    ty(2, "Q4_0", 32, 18),
    ty(3, "Q4_1", 32, 20),
    ty(6, "Q5_0", 32, 22),
    ty(7, "Q5_1", 32, 24),
    ty(8, "Q8_0", 32, 34),
    ty(9, "Q8_1", 32, 36),
    ty(10, "Q2_K", 256, 84),
    ty(11, "Q3_K", 256, 110),
    ty(12, "Q4_K", 256, 144),
    ty(13, "Q5_K", 256, 176),
    ty(14, "Q6_K", 256, 210),
    ty(15, "Q8_K", 256, 292),
    ty(16, "IQ2_XXS", 256, 66),
    ty(17, "IQ2_XS", 256, 74),
    ty(18, "IQ3_XXS", 256, 98),
    ty(19, "IQ1_S", 256, 50),
    ty(20, "IQ4_NL", 32, 18),
    ty(21, "IQ3_S", 256, 110),
    ty(22, "IQ2_S", 256, 82),
    ty(23, "IQ4_XS", 256, 136),
    ty(24, "I8", 1, 1),
    ty(25, "I16", 1, 2),
    ty(26, "I32", 1, 4),
    ty(27, "I64", 1, 8),
    ty(28, "F64", 1, 8),
    ty(29, "IQ1_M", 256, 56),
    ty(30, "BF16", 1, 2),
    ty(34, "TQ1_0", 256, 54),
    ty(35, "TQ2_0", 256, 66),
    ty(39, "MXFP4", 32, 17),
    ty(40, "NVFP4", 64, 36),
    ty(41, "Q1_0", 128, 18),
];

/// Types that old files hold and GGML no longer reads.
const REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl GgmlType {
    /// The type with this number, or `None`.
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().copied().find(|t| t.id == id)
    }

    /// The name of a type GGML has removed.
    pub(super) fn removed(id: u32) -> Option<&'static str> {
        REMOVED.iter().find(|(removed, _)| *removed == id).map(|(_, name)| *name)
    }

    /// The number stored in files.
    pub const fn id(self) -> u32 {
        self.id
    }

    /// GGML's name, as in `IQ4_XS`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Elements per block; 1 for plain types.
    pub const fn block_len(self) -> u64 {
        self.block_len as u64
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> u64 {
        self.block_bytes as u64
    }

    /// The engine's type, or `None` when the engine has none for it.
    pub fn dtype(self) -> Option<DType> {
        // U32 is not a type of GGML; the other names are the same on both sides.
        DType::ALL.into_iter().find(|d| d.name() == self.name)
    }
}

impl TryFrom<DType> for GgmlType {
    type Error = DType;

    /// The type of GGML with the same layout; [`DType::U32`] has none and comes back as the error.
    fn try_from(dtype: DType) -> Result<Self, DType> {
        TYPES.iter().copied().find(|t| t.name == dtype.name()).ok_or(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_type_but_u32_has_the_same_blocks_here() {
        for dtype in DType::ALL {
            match GgmlType::try_from(dtype) {
                Ok(t) => {
                    assert_eq!(t.block_len(), dtype.block_len() as u64, "{dtype}");
                    assert_eq!(t.block_bytes(), dtype.block_bytes() as u64, "{dtype}");
                    assert_eq!(t.dtype(), Some(dtype));
                    assert_eq!(GgmlType::from_id(t.id()), Some(t));
                }
                Err(dtype) => assert_eq!(dtype, DType::U32),
            }
        }
    }

    #[test]
    fn numbers_are_unique_and_not_among_the_removed() {
        for (i, t) in TYPES.iter().enumerate() {
            assert!(TYPES[..i].iter().all(|u| u.id != t.id && u.name != t.name), "{}", t.name);
            assert_eq!(GgmlType::removed(t.id), None, "{}", t.name);
        }
    }
}
