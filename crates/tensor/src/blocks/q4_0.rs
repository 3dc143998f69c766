//! Q4_0: 32 weights in 18 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | `qs`: byte `j` holds the code of weight `j` in its low nibble and of weight `j + 16` in its high one |
//!
//! Weight: `d * (code - 8)`.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (j, &q) in block[2..18].iter().enumerate() {
        out[j] = d * (i32::from(q & 15) - 8) as f32;
        out[j + 16] = d * (i32::from(q >> 4) - 8) as f32;
    }
}
