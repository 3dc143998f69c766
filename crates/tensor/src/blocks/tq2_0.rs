//! TQ2_0: 256 weights of -1, 0, 1 in 66 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..64 | `qs`: two halves of 32 bytes; run `r` of 32 weights of a half lies in bits `2 r` and `2 r + 1` of each byte |
//! | 64..66 | `d`, f16 |
//!
//! Weight: `d * (code - 1)`. The fourth code, which encoders do not write, is 2.

use super::{Integers, f16_at};

pub(super) fn integers(block: &[u8; 66]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 64));
    for (i, code) in out.codes.iter_mut().enumerate() {
        let (run, j) = (i / 32, i % 32);
        *code = (block[run / 4 * 32 + j] >> (run % 4 * 2) & 3) as i8 - 1;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 66], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
