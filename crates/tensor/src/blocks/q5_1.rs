//! Q5_1: 32 weights in 24 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `m`, f16 |
//! | 4..8 | `qh`, u32: bit `j` is the fifth bit of weight `j`'s code |
//! | 8..24 | `qs`: byte `j` holds four code bits of weight `j` in its low nibble and of weight `j + 16` in its high one |
//!
//! Weight: `d * code + m`, rounded after the product.

use super::{f16_at, u32_at};

/// Decodes one block.
pub fn decode_block(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, qh) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
    for (j, &q) in block[8..24].iter().enumerate() {
        let low = u32::from(q & 15) | (qh >> j & 1) << 4;
        let high = u32::from(q >> 4) | (qh >> (j + 16) & 1) << 4;
        out[j] = d * low as f32 + m;
        out[j + 16] = d * high as f32 + m;
    }
}
