//! Q4_1: 32 weights in 20 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `m`, f16 |
//! | 4..20 | `qs`: byte `j` holds the code of weight `j` in its low nibble and of weight `j + 16` in its high one |
//!
//! Weight: `d * code + m`, rounded after the product.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (j, &q) in block[4..20].iter().enumerate() {
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}
