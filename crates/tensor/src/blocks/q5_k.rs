//! Q5_K: 256 weights in 176 bytes, as 8 sub-blocks of 32.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `dmin`, f16 |
//! | 4..16 | 6-bit scale and minimum of each sub-block, packed: [`unpack_scales_mins`](super::unpack_scales_mins) |
//! | 16..48 | `qh`: bit `i` of byte `j` is the fifth code bit of weight `j` of sub-block `i` |
//! | 48..176 | `qs`: 4 runs of 32 bytes; run `c` holds sub-block `2 c` in the low nibbles, `2 c + 1` in the high ones |
//!
//! Weight: `(d * scale) * code - (dmin * min)`, each operation rounded.

use super::k_scales::steps_offsets;

/// Decodes one block.
pub fn decode_block(block: &[u8; 176], out: &mut [f32; 256]) {
    let subs = steps_offsets(block);
    let fifth_bits = &block[16..48];
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let (step, offset) = subs[i];
        let codes = &block[48 + i / 2 * 32..][..32];
        for ((out, &q), &h) in out.iter_mut().zip(codes).zip(fifth_bits) {
            let code = q >> (i % 2 * 4) & 15 | (h >> i & 1) << 4;
            *out = step * f32::from(code) - offset;
        }
    }
}
