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
//! | Q2_K | d 2, dmin 2, 16 bytes of scale (low nibble) and minimum (high one), 8 times (two bits) |
//! | Q3_K, IQ1, IQ2 | d 2, 16 scales of 1, 8 times (third bits, two bits) |
//! | IQ3, IQ4_XS | d 2, 8 scales of 1, 8 times (codes) |
//! | IQ4_NL | d 2, codes |
//! | Q1_0 | d 2, 4 times (fifth bits) |
//! | TQ1_0, TQ2_0 | d 2, 8 times (two bits) |
//! | Q8_1 | as Q8_0 |
//! | Q8_K | d 4, 8 times (8 dwords of codes) |
//! | MXFP4 | exponent 1, codes |
//! | NVFP4 | 4 scales of 1, 2 times (codes) |
//!
//! A dword holds four consecutive weights of a row, so that one broadcast dword of activation codes meets all rows.
//! *codes* are 4 dwords: byte `i` of dword `j` has weight `4 j + i` of the 32 in its low nibble and weight
//! `16 + 4 j + i` in its high one. *fifth bits*, or *third bits*, are one dword: bit `j` of byte `i` belongs to weight
//! `4 j + i`. *upper bits*, or *two bits*, are 2 dwords, for the weights 0-15 and 16-31: bits `2 j` and `2 j + 1` of byte
//! `i` belong to weight `4 j + i` of those 16.
//!
//! The K formats' packed scales are unpacked to bytes. Points of the code books of IQ1, IQ2 and IQ3 become one code for
//! each weight, into the signed values that occur ([`super::books`]): 3.6 or 4.3 bits a weight instead of 1.6 to 3.4, and
//! products without gathers from a table. TQ1_0 takes 2 bits instead of 1.7. Q8_1 and Q8_K lose their
//! sums. Nothing else changes size.

use super::books::{book, inverse};
use tensor::DType;
use tensor::blocks::{Coding, Integers, integers, unpack_scales_mins};

const LOW_NIBBLES: u32 = 0x0f0f_0f0f;

/// Bytes of a packed block of `lanes` rows.
pub(crate) const fn block_bytes(dtype: DType, lanes: usize) -> usize {
    let row = match dtype {
        DType::Q4_K | DType::Q5_K | DType::Q3_K => dtype.block_bytes() + 4,
        DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => 2 + 16 + 8 * 12,
        DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => 2 + 8 + 8 * 16,
        DType::TQ1_0 | DType::TQ2_0 => 2 + 8 * 8,
        DType::Q8_1 => 2 + 32,
        DType::Q8_K => 4 + 256,
        _ => dtype.block_bytes(),
    };
    row * lanes
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

    /// Writes bits 0 and 1 of the bytes of 8 dwords as *two bits*.
    fn put_two_bits(&mut self, dword: impl Fn(usize) -> u32) {
        for part in 0..2 {
            let bits = |j: usize| dword(4 * part + j) & 0x0303_0303;
            self.put_dword((0..4).fold(0, |all, j| all | bits(j) << (2 * j)));
        }
    }

    /// Writes bit `N` of the bytes of 8 dwords as *fifth bits*.
    fn put_bits<const N: usize>(&mut self, dword: impl Fn(usize) -> u32) {
        let bits = |j: usize| dword(j) >> N & 0x0101_0101;
        self.put_dword((0..8).fold(0, |all, j| all | bits(j) << j));
    }
}

/// The codes of a super-block, 32 at a time: `code` gives each weight's.
fn each_32(block: &Integers, code: impl Fn(i8) -> u8, mut put: impl FnMut(&[u8; 32])) {
    for codes in block.codes.as_chunks::<32>().0 {
        put(&codes.map(&code));
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
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::IQ4_NL => {
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
        DType::Q8_0 | DType::Q8_1 => {
            let codes = dtype.block_bytes() - 32;
            to.put([src[0], src[1]]);
            for j in 0..8 {
                to.put_dword(dword_at(src, codes + 4 * j));
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
                    to.put_bits::<0>(|j| dword_at(qh, 4 * j) >> sub);
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
                to.put_two_bits(|j| dword_at(src, 128 + half * 32 + 4 * j) >> (2 * run));
                to.put_codes(|j| dword_at(src, half * 64 + run % 2 * 32 + 4 * j) >> (run / 2 * 4));
            }
        }
        DType::Q2_K => {
            to.put([src[80], src[81]]);
            to.put([src[82], src[83]]);
            for &both in &src[..16] {
                to.put([both]);
            }
            for sub in 0..8 {
                to.put_two_bits(|j| dword_at(src, 16 + sub / 4 * 32 + 4 * j) >> (sub % 4 * 2));
            }
        }
        DType::Q8_K => {
            for j in 0..65 {
                to.put_dword(dword_at(src, 4 * j));
            }
        }
        DType::Q1_0 => {
            to.put([src[0], src[1]]);
            for sub in 0..4 {
                to.put_dword(fifth_bits(dword_at(src, 2 + 4 * sub)));
            }
        }
        DType::MXFP4 => {
            to.put([src[0]]);
            for j in 0..4 {
                to.put_dword(dword_at(src, 1 + 4 * j));
            }
        }
        DType::NVFP4 => {
            for &scale in &src[..4] {
                // The kernels read exponent and mantissa as they are: of what they would not, 0x7f means zero, bit 7 nothing.
                to.put([if scale == 0x7f { 0 } else { scale & 0x7f }]);
            }
            for sub in 0..2 {
                let dword = |j: usize| {
                    let (half, j) = (2 * sub + j / 4, j % 4);
                    dword_at(src, 4 + 8 * half + j % 2 * 4) >> (j / 2 * 4)
                };
                to.put_codes(dword);
            }
        }
        DType::TQ1_0 | DType::TQ2_0 => {
            let d = dtype.block_bytes() - 2;
            to.put([src[d], src[d + 1]]);
            each_32(&whole(dtype, src), |code| (code + 1) as u8, |q| to.put_two_bits(|j| dword_at(q, 4 * j)));
        }
        DType::Q3_K | DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => {
            let block = whole(dtype, src);
            match dtype {
                DType::Q3_K => to.put([src[108], src[109]]),
                DType::IQ1_M => to.put(half::f16::from_f32(Coding::F16Nibbles.get(&src[48..])).to_le_bytes()),
                _ => to.put([src[0], src[1]]),
            }
            block.scales.iter().for_each(|scale| to.put(scale.to_le_bytes()));
            let put = |q: &[u8; 32]| {
                to.put_bits::<2>(|j| dword_at(q, 4 * j));
                to.put_two_bits(|j| dword_at(q, 4 * j));
            };
            if dtype == DType::Q3_K {
                each_32(&block, |code| (code + 4) as u8, put);
            } else {
                let codes = inverse(book(dtype));
                each_32(&block, |level| codes[usize::from(level as u8)], put);
            }
        }
        DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => {
            let block = whole(dtype, src);
            to.put([src[0], src[1]]);
            block.scales.iter().step_by(2).for_each(|scale| to.put(scale.to_le_bytes()));
            let codes = inverse(book(dtype));
            let code = |level: i8| codes[usize::from(level as u8)];
            each_32(&block, code, |q| to.put_codes(|j| dword_at(q, 4 * j)));
        }
    }
}

/// The integers of a stored block of a type that has them.
fn whole(dtype: DType, src: &[u8]) -> Integers {
    integers(dtype, src).unwrap_or_else(|| unreachable!("{dtype} blocks of whole size have integers"))
}
