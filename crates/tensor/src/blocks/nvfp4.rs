//! NVFP4: 64 weights in 36 bytes, as 4 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | scale of each sub-block, E4M3 without sign |
//! | 4..36 | `qs`: 8 bytes a sub-block; byte `j` holds weight `j` in its low nibble and weight `j + 8` in its high one |
//!
//! Weight: half the scale times `LEVELS[code]`, with the levels of [MXFP4](super::mxfp4::LEVELS).

use super::mxfp4::LEVELS;

/// Half the scale that a byte stands for. Bit 7 does not count, and 0x7f, the NaN of E4M3, is zero.
pub fn scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    match (byte, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        // 2^-7 for the bias, 2^-1 for the half, and 2^-3 for the mantissa.
        _ => (8.0 + mantissa) * f32::from_bits((127 - 11 + u32::from(exponent)) << 23),
    }
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 36], out: &mut [f32; 64]) {
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        let d = scale(block[sub]);
        for (j, &q) in block[4 + 8 * sub..][..8].iter().enumerate() {
            out[j] = d * f32::from(LEVELS[usize::from(q & 15)]);
            out[j + 8] = d * f32::from(LEVELS[usize::from(q >> 4)]);
        }
    }
}
