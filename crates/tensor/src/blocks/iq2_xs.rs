//! IQ2_XS: 256 weights in 74 bytes, as 16 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | `qs`, u16 for each 8 weights: 9 bits of index, 7 bits of signs |
//! | 66..74 | a nibble of scale for each sub-block |
//!
//! Weight: as in [IQ2_XXS](super::iq2_xxs).

use super::grids::IQ2_XS;
use super::integers::{entry, even_signs};
use super::iq2_xxs::MAGNITUDES;
use super::{Integers, f16_at};

pub(super) fn integers(block: &[u8; 74]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 0) * 0.125);
    for (group, out_codes) in out.codes.chunks_exact_mut(8).enumerate() {
        let q = u16::from_le_bytes([block[2 + 2 * group], block[3 + 2 * group]]);
        entry::<2>(out_codes, IQ2_XS[usize::from(q & 511)], &MAGNITUDES, even_signs(u32::from(q >> 9)));
    }
    for (i, scale) in out.scales.iter_mut().enumerate() {
        *scale = (2 * (block[66 + i / 2] >> (i % 2 * 4) & 15) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 74], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
