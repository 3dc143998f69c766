//! Q1_0: 128 weights in 18 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | `qs`: bit `j mod 8` of byte `j / 8` belongs to weight `j` |
//!
//! Weight: `d` where the bit is set, else `-d`.

use super::f16_at;

/// Decodes one block.
pub fn decode_block(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16_at(block, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = if block[2 + j / 8] >> (j % 8) & 1 == 1 { d } else { -d };
    }
}
