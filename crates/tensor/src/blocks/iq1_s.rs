//! IQ1_S: 256 weights in 50 bytes, as 8 sub-blocks of 32.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `qs`: low eight bits of the index of each 8 weights |
//! | 34..50 | `qh`, u16 a sub-block: bits `3 g` to `3 g + 2` are the high bits of index `g`, 12 to 14 the scale, 15 the shift |
//!
//! Weight: `(d * (2 scale + 1)) * (point + shift)`, where a point of the book has -1, 0 or 1 in each place and the shift
//! is an eighth, negative where its bit is set. As integers the weights are eight times that.

use super::grids::IQ1;
use super::integers::entry;
use super::{Integers, f16_at};

/// Writes 8 times the values of a point that is shifted down or up.
pub(super) fn point(out: &mut [i8], index: usize, down: bool) {
    entry::<2>(out, IQ1[index], if down { &[-9, -1, 7, 0] } else { &[-7, 1, 9, 0] }, 0);
}

pub(super) fn integers(block: &[u8; 50]) -> Integers {
    let mut out = Integers::plain(f16_at(block, 0) * 0.125);
    for (group, out_codes) in out.codes.chunks_exact_mut(8).enumerate() {
        let (sub, g) = (group / 4, group % 4);
        let qh = u16::from_le_bytes([block[34 + 2 * sub], block[35 + 2 * sub]]);
        let index = usize::from(block[2 + group]) | usize::from(qh >> (3 * g) & 7) << 8;
        point(out_codes, index, qh >> 15 == 1);
        out.scales[group / 2] = (2 * (qh >> 12 & 7) + 1) as i8;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 50], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
