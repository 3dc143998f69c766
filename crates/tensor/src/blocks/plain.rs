//! Plain types, as blocks of one element.

/// Four bytes: IEEE 754 binary32.
pub(super) fn f32_block(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

/// Two bytes: IEEE 754 binary16. Every bit is kept, also of a NaN (the conversion of `half` would quiet it).
pub(super) fn f16_block(block: &[u8; 2], out: &mut [f32; 1]) {
    let x = half::f16::from_le_bytes(*block);
    let bits = u32::from(x.to_bits());
    out[0] = match x.is_nan() {
        true => f32::from_bits((bits & 0x8000) << 16 | 0x7f80_0000 | (bits & 0x03ff) << 13),
        false => x.to_f32(),
    };
}

/// Two bytes: the upper half of a binary32. Every bit is kept, also of a NaN.
pub(super) fn bf16_block(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
}
