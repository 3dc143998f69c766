//! Q8_K: 256 weights in 292 bytes. GGML keeps activations in it; files hold it only by way of experiments.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | `d`, f32 |
//! | 4..260 | `qs`: byte `j` is the code of weight `j`, i8 |
//! | 260..292 | `bsums`: the sum of each 16 codes, i16, a help for products |
//!
//! Weight: `d * code`; the sums have no part in it.

use super::u32_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_bits(u32_at(block, 0));
    for (out, &q) in out.iter_mut().zip(&block[4..]) {
        *out = d * f32::from(q as i8);
    }
}
