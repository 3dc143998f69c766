//! Q5_0: 32 weights in 22 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..6 | `qh`, u32: bit `j` is the fifth bit of weight `j`'s code |
//! | 6..22 | `qs`: byte `j` holds four code bits of weight `j` in its low nibble and of weight `j + 16` in its high one |
//!
//! Weight: `d * (code - 16)`.

use super::{f16_at, u32_at};

/// Decodes one block.
pub fn decode_block(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, qh) = (f16_at(block, 0), u32_at(block, 2));
    for (j, &q) in block[6..22].iter().enumerate() {
        let low = u32::from(q & 15) | (qh >> j & 1) << 4;
        let high = u32::from(q >> 4) | (qh >> (j + 16) & 1) << 4;
        out[j] = d * (low as i32 - 16) as f32;
        out[j + 16] = d * (high as i32 - 16) as f32;
    }
}
