//! IQ4_NL: 32 weights in 18 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | `qs`: byte `j` holds the code of weight `j` in its low nibble and of weight `j + 16` in its high one |
//!
//! Weight: `d * LEVELS[code]`.

use super::f16_at;

/// The values of the codes, also of IQ4_XS.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Decodes one block.
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (j, &q) in block[2..18].iter().enumerate() {
        out[j] = d * f32::from(LEVELS[usize::from(q & 15)]);
        out[j + 16] = d * f32::from(LEVELS[usize::from(q >> 4)]);
    }
}
