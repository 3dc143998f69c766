//! TQ1_0: 256 weights of -1, 0, 1 in 54 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..48 | `qs`: five weights a byte: of bytes 0..32 weights `32 n + j` from `n` = 0 to 4, of bytes 32..48 weights `160 + 16 n + j` |
//! | 48..52 | `qh`: four weights a byte, `240 + 4 n + j` |
//! | 52..54 | `d`, f16 |
//!
//! A byte is a fraction of 256 in base three, first weight first: digit `n` is the whole part of three times the fraction
//! of `byte * 3^n`. Weight: `d * (digit - 1)`.

use super::{Integers, f16_at};

pub(super) fn integers(block: &[u8; 54]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 52));
    // First byte, how many bytes, and the weight of the first digit of the first.
    for (bytes, digits, weight) in [(0..32, 5, 0), (32..48, 5, 160), (48..52, 4, 240)] {
        let count = bytes.len();
        for (j, &byte) in block[bytes].iter().enumerate() {
            let mut rest = byte;
            for n in 0..digits {
                out.codes[weight + count * n + j] = ((u16::from(rest) * 3) >> 8) as i8 - 1;
                rest = rest.wrapping_mul(3);
            }
        }
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 54], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
