//! Q3_K: 256 weights in 110 bytes, as 16 sub-blocks of 16.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | `hmask`: bit `r` of byte `j` is the third code bit of weight `32 r + j` |
//! | 32..96 | `qs`: two halves of 32 bytes; run `r` of 32 weights of a half lies in bits `2 r` and `2 r + 1` of each byte |
//! | 96..108 | 6-bit scale of each sub-block, packed |
//! | 108..110 | `d`, f16 |
//!
//! Scale `i` has its low four bits in byte `i mod 8`, in the low nibble for `i < 8`, and its high two in bits
//! `2 (i / 4)` and `2 (i / 4) + 1` of byte `8 + i mod 4`. Weight: `(d * (scale - 32)) * (code - 4)`.

use super::{Integers, f16_at};

/// The scales of the sub-blocks, less their offset.
fn unpack_scales(packed: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

pub(super) fn integers(block: &[u8; 110]) -> Integers {
    let mut packed = [0; 12];
    packed.copy_from_slice(&block[96..108]);
    let mut out = Integers { d: f16_at(block, 108), scales: unpack_scales(&packed), codes: [0; 256] };
    for (i, code) in out.codes.iter_mut().enumerate() {
        let (run, j) = (i / 32, i % 32);
        let low = block[32 + run / 4 * 32 + j] >> (run % 4 * 2) & 3;
        *code = (low | (block[j] >> run & 1) << 2) as i8 - 4;
    }
    out
}

/// Decodes one block.
pub fn decode_block(block: &[u8; 110], out: &mut [f32; 256]) {
    integers(block).decode(out);
}
