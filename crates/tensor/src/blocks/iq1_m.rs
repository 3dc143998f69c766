//! IQ1_M: 256 weights in 56 bytes, as 16 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | `qs`: low eight bits of the index of each 8 weights |
//! | 32..48 | `qh`, a nibble for each 8 weights: the high three bits of the index, then the bit of the shift |
//! | 48..56 | four u16: the scales of four sub-blocks, 3 bits each, and above them a nibble of `d` |
//!
//! `d` is an f16, its lowest nibble first. Weights are those of [IQ1_S](super::iq1_s).

use super::iq1_s::point;
use super::{Coding, Integers};

pub(super) fn integers(block: &[u8; 56]) -> Integers {
    let mut out = Integers::plain(Coding::F16Nibbles.get(&block[48..]) * 0.125);
    for (group, out_codes) in out.codes.chunks_exact_mut(8).enumerate() {
        let qh = block[32 + group / 2] >> (group % 2 * 4) & 15;
        point(out_codes, usize::from(block[group]) | usize::from(qh & 7) << 8, qh >> 3 == 1);
    }
    for (i, scale) in out.scales.iter_mut().enumerate() {
        let four = u16::from_le_bytes([block[48 + i / 4 * 2], block[49 + i / 4 * 2]]);
        *scale = (2 * (four >> (i % 4 * 3) & 7) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 56], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
