//! Q8_0: 32 weights in 34 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `qs`: byte `j` is the code of weight `j`, i8 |
//!
//! Weight: `d * code`.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q as i8);
    }
}
