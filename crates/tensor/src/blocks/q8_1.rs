//! Q8_1: 32 weights in 36 bytes. GGML keeps activations in it; files hold it only by way of experiments.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `s`, f16: `d` times the sum of the codes, a help for products |
//! | 4..36 | `qs`: byte `j` is the code of weight `j`, i8 |
//!
//! Weight: `d * code`; `s` has no part in it.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 36], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[4..]) {
        *out = d * f32::from(q as i8);
    }
}
