//! Element types: plain scalars and the block-quantised formats of GGML.

/// How the elements of a tensor are stored.
///
/// Quantised types store rows as a sequence of blocks; a row's length must be a multiple of
/// [`DType::block_len`]. Byte layouts are those of GGML (`ggml-common.h`), documented beside each decoder
/// in [`crate::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(non_camel_case_types)] // the names the field uses
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// Unsigned 32-bit integers: ids, positions, tables.
    U32,
    /// 32 weights, one f16 scale, 4-bit codes offset by 8.
    Q4_0,
    /// 32 weights, f16 scale and minimum, 4-bit codes.
    Q4_1,
    /// 32 weights, one f16 scale, 5-bit codes offset by 16.
    Q5_0,
    /// 32 weights, f16 scale and minimum, 5-bit codes.
    Q5_1,
    /// 32 weights, one f16 scale, 8-bit signed codes.
    Q8_0,
    /// 256 weights in 8 sub-blocks with 6-bit scales and minima, 4-bit codes.
    Q4_K,
    /// 256 weights in 8 sub-blocks with 6-bit scales and minima, 5-bit codes.
    Q5_K,
    /// 256 weights in 16 sub-blocks with 8-bit scales, 6-bit codes offset by 32.
    Q6_K,
    /// 256 weights in 16 sub-blocks with 4-bit scales and minima, 2-bit codes.
    Q2_K,
    /// 256 weights in 16 sub-blocks with 6-bit scales, 3-bit codes offset by 4.
    Q3_K,
    /// 128 weights, one f16 scale, signs.
    Q1_0,
    /// 32 weights, one f16 scale, 8-bit signed codes and their scaled sum. GGML's form of activations.
    Q8_1,
    /// 256 weights, one f32 scale, 8-bit signed codes and their sums. GGML's form of activations.
    Q8_K,
    /// 256 weights in sub-blocks of 32, 8 at a time from a book of 2048 points of -1, 0, 1, shifted by an eighth.
    IQ1_S,
    /// As [`DType::IQ1_S`] with sub-blocks of 16 and a shift for each 8.
    IQ1_M,
    /// 256 weights in sub-blocks of 32, 8 at a time from a book of 256 points, 7-bit signs.
    IQ2_XXS,
    /// 256 weights in sub-blocks of 16, 8 at a time from a book of 512 points, 7-bit signs.
    IQ2_XS,
    /// 256 weights in sub-blocks of 16, 8 at a time from a book of 1024 points, signs.
    IQ2_S,
    /// 256 weights in sub-blocks of 32, 4 at a time from a book of 256 points, 7-bit signs.
    IQ3_XXS,
    /// 256 weights in sub-blocks of 32, 4 at a time from a book of 512 points, signs.
    IQ3_S,
    /// 32 weights, one f16 scale, 4-bit codes into 16 levels that lie denser around zero.
    IQ4_NL,
    /// 256 weights in 8 sub-blocks with 6-bit scales, the levels of [`DType::IQ4_NL`].
    IQ4_XS,
    /// 256 weights of -1, 0, 1, one f16 scale, five weights in a byte.
    TQ1_0,
    /// 256 weights of -1, 0, 1, one f16 scale, 2-bit codes.
    TQ2_0,
    /// 32 weights, a power of two as scale, 4-bit floats (OCP microscaling).
    MXFP4,
    /// 64 weights in 4 sub-blocks with 8-bit floats as scales, 4-bit floats.
    NVFP4,
}

impl DType {
    /// Every type, in declaration order.
    pub const ALL: [DType; 30] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::U32,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q1_0,
        DType::Q8_1,
        DType::Q8_K,
        DType::IQ1_S,
        DType::IQ1_M,
        DType::IQ2_XXS,
        DType::IQ2_XS,
        DType::IQ2_S,
        DType::IQ3_XXS,
        DType::IQ3_S,
        DType::IQ4_NL,
        DType::IQ4_XS,
        DType::TQ1_0,
        DType::TQ2_0,
        DType::MXFP4,
        DType::NVFP4,
    ];

    /// The types that weights may have: all but the integers.
    pub const WEIGHTS: [DType; DType::ALL.len() - 1] = {
        let (mut types, mut from, mut to) = ([DType::F32; DType::ALL.len() - 1], 0, 0);
        while from < DType::ALL.len() {
            if !matches!(DType::ALL[from], DType::U32) {
                types[to] = DType::ALL[from];
                to += 1;
            }
            from += 1;
        }
        types
    };

    /// Elements per block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::U32 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 | DType::Q8_1 => 32,
            DType::IQ4_NL | DType::MXFP4 => 32,
            DType::NVFP4 => 64,
            DType::Q1_0 => 128,
            DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K | DType::Q8_K => 256,
            DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => 256,
            DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS | DType::TQ1_0 | DType::TQ2_0 => 256,
        }
    }

    /// Bytes per block; the element size for plain types.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 => 2 + 16,
            DType::Q4_1 => 4 + 16,
            DType::Q5_0 => 2 + 4 + 16,
            DType::Q5_1 => 4 + 4 + 16,
            DType::Q8_0 => 2 + 32,
            DType::Q4_K => 4 + 12 + 128,
            DType::Q5_K => 4 + 12 + 32 + 128,
            DType::Q6_K => 128 + 64 + 16 + 2,
            DType::Q2_K => 16 + 64 + 4,
            DType::Q3_K => 32 + 64 + 12 + 2,
            DType::Q1_0 => 2 + 16,
            DType::Q8_1 => 4 + 32,
            DType::Q8_K => 4 + 256 + 32,
            DType::IQ1_S => 2 + 32 + 16,
            DType::IQ1_M => 32 + 16 + 8,
            DType::IQ2_XXS => 2 + 64,
            DType::IQ2_XS => 2 + 64 + 8,
            DType::IQ2_S => 2 + 64 + 8 + 8,
            DType::IQ3_XXS => 2 + 64 + 32,
            DType::IQ3_S => 2 + 64 + 8 + 32 + 4,
            DType::IQ4_NL => 2 + 16,
            DType::IQ4_XS => 2 + 2 + 4 + 128,
            DType::TQ1_0 => 48 + 4 + 2,
            DType::TQ2_0 => 64 + 2,
            DType::MXFP4 => 1 + 16,
            DType::NVFP4 => 4 + 32,
        }
    }

    /// True for the block-quantised types.
    pub const fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of `len` consecutive elements, or `None` when `len` does not fill whole blocks or the size overflows.
    pub const fn bytes_for(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The field's name of the type, as in `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::U32 => "U32",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
            DType::Q2_K => "Q2_K",
            DType::Q3_K => "Q3_K",
            DType::Q1_0 => "Q1_0",
            DType::Q8_1 => "Q8_1",
            DType::Q8_K => "Q8_K",
            DType::IQ1_S => "IQ1_S",
            DType::IQ1_M => "IQ1_M",
            DType::IQ2_XXS => "IQ2_XXS",
            DType::IQ2_XS => "IQ2_XS",
            DType::IQ2_S => "IQ2_S",
            DType::IQ3_XXS => "IQ3_XXS",
            DType::IQ3_S => "IQ3_S",
            DType::IQ4_NL => "IQ4_NL",
            DType::IQ4_XS => "IQ4_XS",
            DType::TQ1_0 => "TQ1_0",
            DType::TQ2_0 => "TQ2_0",
            DType::MXFP4 => "MXFP4",
            DType::NVFP4 => "NVFP4",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
