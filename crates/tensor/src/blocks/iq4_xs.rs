//! IQ4_XS: 256 weights in 136 bytes, as 8 sub-blocks of 32.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | `scales_h`, u16: bits `2 i` and `2 i + 1` are the high bits of the scale of sub-block `i` |
//! | 4..8 | `scales_l`: byte `i` holds the low bits of the scale of sub-block `2 i` in its low nibble, `2 i + 1` in its high one |
//! | 8..136 | `qs`: 16 bytes a sub-block; byte `j` holds weight `j` in its low nibble and weight `j + 16` in its high one |
//!
//! Weight: `(d * (scale - 32)) * LEVELS[code]`, with the levels of [IQ4_NL](super::iq4_nl::LEVELS).

use super::iq4_nl::LEVELS;
use super::{Integers, f16_at};

/// The scales of the sub-blocks of a block, less their offset.
fn scales(block: &[u8; 136]) -> [i8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|i| {
        let low = block[4 + i / 2] >> (i % 2 * 4) & 15;
        (low | ((high >> (2 * i) & 3) as u8) << 4) as i8 - 32
    })
}

pub(super) fn integers(block: &[u8; 136]) -> Integers {
    let scales = scales(block);
    let mut out = Integers::plain(f16_at(block, 0));
    out.scales = std::array::from_fn(|i| scales[i / 2]);
    for (i, code) in out.codes.iter_mut().enumerate() {
        let (sub, j) = (i / 32, i % 32);
        *code = LEVELS[usize::from(block[8 + 16 * sub + j % 16] >> (j / 16 * 4) & 15)];
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 136], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
