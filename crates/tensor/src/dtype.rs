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
}

impl DType {
    /// Every type, in declaration order.
    pub const ALL: [DType; 12] = [
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
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Q4_K | DType::Q5_K | DType::Q6_K => 256,
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
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
