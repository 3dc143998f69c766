//! IQ3_XXS: 256 weights in 98 bytes, as 8 sub-blocks of 32.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | `qs`: the index of each 4 weights |
//! | 66..98 | a u32 a sub-block: four times 7 bits of signs, the scale on top |
//!
//! Weight: `d / 4 * (2 scale + 1)` times the value of the point with its sign. Seven bits give eight signs, of which an
//! even number is negative.

use super::grids::IQ3_XXS;
use super::integers::{entry, even_signs};
use super::{Integers, f16_at, u32_at};

/// The magnitudes of the book.
pub const MAGNITUDES: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

pub(super) fn integers(block: &[u8; 98]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 0) * 0.25);
    for (group, out_codes) in out.codes.chunks_exact_mut(8).enumerate() {
        let word = u32_at(block, 66 + group / 4 * 4);
        let signs = even_signs(word >> (group % 4 * 7));
        let (first, second) = out_codes.split_at_mut(4);
        entry::<4>(first, IQ3_XXS[usize::from(block[2 + 2 * group])], &MAGNITUDES, signs);
        entry::<4>(second, IQ3_XXS[usize::from(block[3 + 2 * group])], &MAGNITUDES, signs >> 4);
        out.scales[group / 2] = (2 * (word >> 28) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 98], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
