//! IQ2_S: 256 weights in 82 bytes, as 16 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `qs`: low eight bits of the index of each 8 weights |
//! | 34..66 | signs of each 8 weights |
//! | 66..74 | `qh`: high two bits of four indices |
//! | 74..82 | a nibble of scale for each sub-block |
//!
//! Weight: as in [IQ2_XXS](super::iq2_xxs), with a bit for every sign.

use super::grids::IQ2_S;
use super::integers::entry;
use super::iq2_xxs::MAGNITUDES;
use super::{Integers, f16_at};

pub(super) fn integers(block: &[u8; 82]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 0) * 0.125);
    for (group, out_codes) in out.codes.chunks_exact_mut(8).enumerate() {
        let high = block[66 + group / 4] >> (group % 4 * 2) & 3;
        let index = usize::from(block[2 + group]) | usize::from(high) << 8;
        entry::<2>(out_codes, IQ2_S[index], &MAGNITUDES, block[34 + group]);
    }
    for (i, scale) in out.scales.iter_mut().enumerate() {
        *scale = (2 * (block[74 + i / 2] >> (i % 2 * 4) & 15) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 82], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
