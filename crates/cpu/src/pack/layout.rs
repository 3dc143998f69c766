//! Where each format's bytes lie in a packed block, and how a row of GGML blocks gets there.
//!
//! A packed block holds one GGML block (or one element of a plain type) of each of the `R` rows of a lane group. Its
//! fields follow each other, and in each field the rows lie side by side:
//!
//! | format | fields, in bytes per row |
//! |---|---|
//! | F32, F16, BF16 | element 4 or 2 |
//! | Q4_0 | d 2, codes |
//! | Q4_1 | d 2, m 2, codes |
//! | Q5_0 | d 2, fifth bits, codes |
//! | Q5_1 | d 2, m 2, fifth bits, codes |
//! | Q8_0 | d 2, 8 dwords of codes |
//! | Q4_K | d 2, dmin 2, 8 scales of 1, 8 minima of 1, 8 times (codes) |
//! | Q5_K | d 2, dmin 2, 8 scales of 1, 8 minima of 1, 8 times (fifth bits, codes) |
//! | Q6_K | d 2, 16 scales of 1, 8 times (upper bits, codes) |
//!
//! A dword holds four consecutive weights of a row, so that one broadcast dword of activation codes meets all rows.
//! *codes* are 4 dwords: byte `i` of dword `j` has weight `4 j + i` of the 32 in its low nibble and weight
//! `16 + 4 j + i` in its high one. *fifth bits* are one dword: bit `j` of byte `i` belongs to weight `4 j + i`.
//! *upper bits* are 2 dwords, for the weights 0-15 and 16-31: bits `2 j` and `2 j + 1` of byte `i` belong to weight
//! `4 j + i` of those 16. The K formats' packed scales are unpacked to bytes; nothing else changes size.

use tensor::DType;
use tensor::blocks::unpack_scales_mins;

const LOW_NIBBLES: u32 = 0x0f0f_0f0f;

/// Bytes of a packed block of `lanes` rows.
pub(crate) const fn block_bytes(dtype: DType, lanes: usize) -> usize {
    let unpacked_scales = match dtype {
        DType::Q4_K | DType::Q5_K => 4,
        _ => 0,
    };
    (dtype.block_bytes() + unpacked_scales) * lanes
}

/// One row's place in a packed block.
struct Lane<'a> {
    out: &'a mut [u8],
    lanes: usize,
    lane: usize,
    /// Offset of the field that is written next.
    at: usize,
}

impl Lane<'_> {
    /// Writes the next field.
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        self.out[self.at + self.lane * N..][..N].copy_from_slice(&field);
        self.at += self.lanes * N;
    }

    fn put_dword(&mut self, dword: u32) {
        self.put(dword.to_le_bytes());
    }

    /// Writes the low nibbles of 8 dwords as *codes*.
    fn put_codes(&mut self, dword: impl Fn(usize) -> u32) {
        for j in 0..4 {
            self.put_dword(dword(j) & LOW_NIBBLES | (dword(j + 4) & LOW_NIBBLES) << 4);
        }
    }
}

fn dword_at(src: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([src[at], src[at + 1], src[at + 2], src[at + 3]])
}

/// From bit `4 j + i` belonging to weight `4 j + i` to *fifth bits*.
fn fifth_bits(qh: u32) -> u32 {
    let byte = |i: u32| {
        let x = qh >> i & 0x1111_1111;
        let x = (x | x >> 3) & 0x0303_0303;
        let x = (x | x >> 6) & 0x000f_000f;
        (x | x >> 12) & 0xff
    };
    byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
}

/// Writes one GGML block of a row into its lane of a packed block. `src` has the format's block size, and `out` that of
/// [`block_bytes`].
pub(crate) fn pack_block(dtype: DType, lanes: usize, lane: usize, src: &[u8], out: &mut [u8]) {
    let mut to = Lane { out, lanes, lane, at: 0 };
    match dtype {
        DType::F32 | DType::U32 => to.put([src[0], src[1], src[2], src[3]]),
        DType::F16 | DType::BF16 => to.put([src[0], src[1]]),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => {
            let mut at = 0;
            for _ in 0..if matches!(dtype, DType::Q4_1 | DType::Q5_1) { 2 } else { 1 } {
                to.put([src[at], src[at + 1]]);
                at += 2;
            }
            if matches!(dtype, DType::Q5_0 | DType::Q5_1) {
                to.put_dword(fifth_bits(dword_at(src, at)));
                at += 4;
            }
            // GGML pairs weights 16 apart in one byte, as we do.
            for j in 0..4 {
                to.put_dword(dword_at(src, at + 4 * j));
            }
        }
        DType::Q8_0 => {
            to.put([src[0], src[1]]);
            for j in 0..8 {
                to.put_dword(dword_at(src, 2 + 4 * j));
            }
        }
        DType::Q4_K | DType::Q5_K => {
            to.put([src[0], src[1]]);
            to.put([src[2], src[3]]);
            let mut packed = [0; 12];
            packed.copy_from_slice(&src[4..16]);
            let (scales, mins) = unpack_scales_mins(&packed);
            for byte in scales.into_iter().chain(mins) {
                to.put([byte]);
            }
            let (qh, qs) = src[16..].split_at(if dtype == DType::Q5_K { 32 } else { 0 });
            for sub in 0..8 {
                if dtype == DType::Q5_K {
                    let bit = |j: usize| (dword_at(qh, 4 * j) >> sub & 0x0101_0101) << j;
                    to.put_dword((0..8).fold(0, |bits, j| bits | bit(j)));
                }
                to.put_codes(|j| dword_at(qs, sub / 2 * 32 + 4 * j) >> (sub % 2 * 4));
            }
        }
        DType::Q6_K => {
            to.put([src[208], src[209]]);
            for &scale in &src[192..208] {
                to.put([scale]);
            }
            for sub in 0..8 {
                let (half, run) = (sub / 4, sub % 4);
                for part in 0..2 {
                    let bits = |j: usize| {
                        dword_at(src, 128 + half * 32 + part * 16 + 4 * j) >> (2 * run) & 0x0303_0303
                    };
                    to.put_dword((0..4).fold(0, |all, j| all | bits(j) << (2 * j)));
                }
                to.put_codes(|j| dword_at(src, half * 64 + run % 2 * 32 + 4 * j) >> (run / 2 * 4));
            }
        }
    }
}
