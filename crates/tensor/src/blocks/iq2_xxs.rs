//! IQ2_XXS: 256 weights in 66 bytes, as 8 sub-blocks of 32.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | 8 bytes a sub-block: four indices of a byte, then a u32 with four times 7 bits of signs and the scale on top |
//!
//! Weight: `d / 8 * (2 scale + 1)` times the value of the point with its sign. Seven bits give eight signs, of which an
//! even number is negative.

use super::grids::IQ2_XXS;
use super::integers::{entry, even_signs};
use super::{Integers, f16_at, u32_at};

/// The magnitudes of the books of the IQ2 formats; the last is in no entry.
pub const MAGNITUDES: [i8; 4] = [8, 25, 43, 0];

pub(super) fn integers(block: &[u8; 66]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 0) * 0.125);
    for (group, out_codes) in out.codes.chunks_exact_mut(8).enumerate() {
        let at = 2 + group / 4 * 8;
        let word = u32_at(block, at + 4);
        let index = block[at + group % 4];
        entry::<2>(out_codes, IQ2_XXS[usize::from(index)], &MAGNITUDES, even_signs(word >> (group % 4 * 7)));
        out.scales[group / 2] = (2 * (word >> 28) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 66], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
