//! Q2_K: 256 weights in 84 bytes, as 16 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | of each sub-block the scale (low nibble) and the minimum (high one) |
//! | 16..80 | `qs`: two halves of 32 bytes; run `r` of 32 weights of a half lies in bits `2 r` and `2 r + 1` of each byte |
//! | 80..82 | `d`, f16 |
//! | 82..84 | `dmin`, f16 |
//!
//! Weight: `(d * scale) * code - (dmin * min)`, each operation rounded.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, out) in out.chunks_exact_mut(16).enumerate() {
        let step = d * f32::from(block[i] & 15);
        let offset = dmin * f32::from(block[i] >> 4);
        let codes = &block[16 + i / 8 * 32 + i % 2 * 16..][..16];
        for (out, &q) in out.iter_mut().zip(codes) {
            *out = step * f32::from(q >> (i / 2 % 4 * 2) & 3) - offset;
        }
    }
}
