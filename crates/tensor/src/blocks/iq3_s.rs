//! IQ3_S: 256 weights in 110 bytes, as 8 sub-blocks of 32.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | `qs`: low eight bits of the index of each 4 weights |
//! | 66..74 | `qh`: bit `g` of byte `i` is the ninth bit of index `8 i + g` |
//! | 74..106 | signs of each 8 weights |
//! | 106..110 | a nibble of scale for each sub-block |
//!
//! Weight: `d * (2 scale + 1)` times the value of the point with its sign.

use super::grids::IQ3_S;
use super::integers::entry;
use super::{Integers, f16_at};

/// The magnitudes of the book.
pub const MAGNITUDES: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

pub(super) fn integers(block: &[u8; 110]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 0));
    for (group, out_codes) in out.codes.chunks_exact_mut(4).enumerate() {
        let high = block[66 + group / 8] >> (group % 8) & 1;
        let index = usize::from(block[2 + group]) | usize::from(high) << 8;
        let signs = block[74 + group / 2] >> (group % 2 * 4);
        entry::<4>(out_codes, IQ3_S[index], &MAGNITUDES, signs);
    }
    for (i, scale) in out.scales.iter_mut().enumerate() {
        let sub = i / 2;
        *scale = (2 * (block[106 + sub / 2] >> (sub % 2 * 4) & 15) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 110], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
