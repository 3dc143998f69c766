//! Where each format's bytes lie in a packed block, and how rows of GGML blocks get there.
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
use super::rows::{Blocks, Place, fifth_bits, shifted};
use tensor::DType;
use tensor::blocks::{Coding, integers};

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

/// Packs `R` rows, given in their stored form, into the lanes from `lane` on of a lane group, `out`, of `lanes` rows.
///
/// # Panics
/// When rows and `out` do not have the sizes of as many blocks of the format.
#[inline(always)]
pub(crate) fn pack_rows<const R: usize>(
    dtype: DType,
    lanes: usize,
    lane: usize,
    rows: &[&[u8]; R],
    out: &mut [u8],
) {
    macro_rules! each {
        ($dtype:ident, $pack:expr) => {
            each::<{ DType::$dtype.block_bytes() }, R>(
                block_bytes(DType::$dtype, lanes),
                (lanes, lane),
                rows,
                out,
                #[inline(always)]
                |to, from| $pack(to, from),
            )
        };
    }
    match dtype {
        DType::F32 | DType::U32 => each!(F32, dwords::<1, _, _>),
        DType::F16 | DType::BF16 => halves(lanes, lane, rows, out),
        DType::Q4_0 => each!(Q4_0, nibbles::<1, false, _, _>),
        DType::IQ4_NL => each!(IQ4_NL, nibbles::<1, false, _, _>),
        DType::Q4_1 => each!(Q4_1, nibbles::<2, false, _, _>),
        DType::Q5_0 => each!(Q5_0, nibbles::<1, true, _, _>),
        DType::Q5_1 => each!(Q5_1, nibbles::<2, true, _, _>),
        DType::Q8_0 => each!(Q8_0, bytes),
        DType::Q8_1 => each!(Q8_1, bytes),
        DType::Q4_K => each!(Q4_K, q4_k),
        DType::Q5_K => each!(Q5_K, q5_k),
        DType::Q6_K => each!(Q6_K, q6_k),
        DType::Q2_K => each!(Q2_K, q2_k),
        // Scale and codes, without the sums.
        DType::Q8_K => each!(Q8_K, dwords::<65, _, _>),
        DType::Q1_0 => each!(Q1_0, q1_0),
        DType::MXFP4 => each!(MXFP4, mxfp4),
        DType::NVFP4 => each!(NVFP4, nvfp4),
        DType::TQ1_0
        | DType::TQ2_0
        | DType::Q3_K
        | DType::IQ1_S
        | DType::IQ1_M
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS
        | DType::IQ3_S
        | DType::IQ4_XS => by_integers(dtype, lanes, lane, rows, out),
    }
}

/// Calls `pack` for each block of `B` bytes of the rows and its place in `out`, where a packed block has so many bytes.
#[inline(always)]
fn each<const B: usize, const R: usize>(
    packed_bytes: usize,
    (lanes, lane): (usize, usize),
    rows: &[&[u8]; R],
    out: &mut [u8],
    pack: impl Fn(&mut Place<'_, R>, Blocks<'_, B, R>),
) {
    let mut blocks: [&[[u8; B]]; R] = [&[]; R];
    for (blocks, row) in blocks.iter_mut().zip(rows) {
        *blocks = row.as_chunks().0;
    }
    for (i, out) in out.chunks_exact_mut(packed_bytes).enumerate() {
        let mut block = [&[0; B]; R];
        for (block, blocks) in block.iter_mut().zip(&blocks) {
            *block = &blocks[i];
        }
        pack(&mut Place { out, lanes, lane, at: 0 }, Blocks(block));
    }
}

/// The first `N` dwords.
#[inline(always)]
fn dwords<const N: usize, const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    for j in 0..N {
        to.put(from.bytes::<4>(4 * j));
    }
}

/// Elements of two bytes, two at a time.
#[inline(always)]
fn halves<const R: usize>(lanes: usize, lane: usize, rows: &[&[u8]; R], out: &mut [u8]) {
    let pairs = rows[0].len() / 4;
    let (out, last) = out.split_at_mut(pairs * 4 * lanes);
    each::<4, R>(
        4 * lanes,
        (lanes, lane),
        rows,
        out,
        #[inline(always)]
        |to, from| to.put_halves(from.words(0)),
    );
    if !last.is_empty() {
        let mut field = [[0; 2]; R];
        for (half, row) in field.iter_mut().zip(rows) {
            *half = [row[4 * pairs], row[4 * pairs + 1]];
        }
        Place { out: last, lanes, lane, at: 0 }.put(field);
    }
}

/// The formats of 32 weights in nibbles: `HALVES` of scale and minimum, a fifth bit of each weight where they have `FIFTH`, codes.
#[inline(always)]
fn nibbles<const HALVES: usize, const FIFTH: bool, const B: usize, const R: usize>(
    to: &mut Place<'_, R>,
    from: Blocks<'_, B, R>,
) {
    for i in 0..HALVES {
        to.put(from.bytes::<2>(2 * i));
    }
    if FIFTH {
        to.put_words(fifth_bits(from.words(2 * HALVES)));
    }
    // GGML pairs weights 16 apart in one byte, as we do.
    for j in 0..4 {
        to.put(from.bytes::<4>(B - 16 + 4 * j));
    }
}

/// A scale and, at the end, 32 codes.
#[inline(always)]
fn bytes<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    to.put(from.bytes::<2>(0));
    for j in 0..8 {
        to.put(from.bytes::<4>(B - 32 + 4 * j));
    }
}

/// The first 16 bytes of Q4_K and Q5_K: scale and minimum, and those of the sub-blocks, which
/// [`tensor::blocks::unpack_scales_mins`] says for one row.
#[inline(always)]
fn scales_mins<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    const LOW: u32 = 0x3f3f_3f3f;
    const HIGH: u32 = 0x3030_3030;
    const NIBBLES: u32 = 0x0f0f_0f0f;
    to.put(from.bytes::<2>(0));
    to.put(from.bytes::<2>(2));
    let [scales, mins, rest] = [from.words(4), from.words(8), from.words(12)];
    to.put_bytes(scales & LOW);
    to.put_bytes(rest & NIBBLES | scales >> 2 & HIGH);
    to.put_bytes(mins & LOW);
    to.put_bytes(rest >> 4 & NIBBLES | mins >> 2 & HIGH);
}

#[inline(always)]
fn q4_k<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    scales_mins(to, from);
    for pair in 0..4 {
        let codes = from.eight(16 + 32 * pair);
        to.put_codes(codes);
        to.put_codes(shifted(codes, 4));
    }
}

#[inline(always)]
fn q5_k<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    scales_mins(to, from);
    let fifth = from.eight(16);
    for pair in 0..4 {
        let codes = from.eight(48 + 32 * pair);
        to.put_bits(shifted(fifth, 2 * pair));
        to.put_codes(codes);
        to.put_bits(shifted(fifth, 2 * pair + 1));
        to.put_codes(shifted(codes, 4));
    }
}

#[inline(always)]
fn q6_k<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    to.put(from.bytes::<2>(208));
    for i in 0..4 {
        to.put_bytes(from.words(192 + 4 * i));
    }
    for half in 0..2 {
        let upper = from.eight(128 + 32 * half);
        let lower = [from.eight(64 * half), from.eight(64 * half + 32)];
        for run in 0..4 {
            to.put_two_bits(shifted(upper, 2 * run));
            to.put_codes(shifted(lower[run % 2], run / 2 * 4));
        }
    }
}

#[inline(always)]
fn q2_k<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    to.put(from.bytes::<2>(80));
    to.put(from.bytes::<2>(82));
    for i in 0..4 {
        to.put_bytes(from.words(4 * i));
    }
    for half in 0..2 {
        let codes = from.eight(16 + 32 * half);
        for run in 0..4 {
            to.put_two_bits(shifted(codes, 2 * run));
        }
    }
}

#[inline(always)]
fn q1_0<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    to.put(from.bytes::<2>(0));
    for sub in 0..4 {
        to.put_words(fifth_bits(from.words(2 + 4 * sub)));
    }
}

#[inline(always)]
fn mxfp4<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    to.put(from.bytes::<1>(0));
    for j in 0..4 {
        to.put(from.bytes::<4>(1 + 4 * j));
    }
}

#[inline(always)]
fn nvfp4<const B: usize, const R: usize>(to: &mut Place<'_, R>, from: Blocks<'_, B, R>) {
    for i in 0..4 {
        let mut scales = from.bytes::<1>(i);
        for [scale] in &mut scales {
            // The kernels read exponent and mantissa as they are: of what they would not, 0x7f means zero, bit 7 nothing.
            *scale = if *scale == 0x7f { 0 } else { *scale & 0x7f };
        }
        to.put(scales);
    }
    for sub in 0..2 {
        // 16 weights are 8 bytes, the first 8 of them in the low nibbles.
        let [a, b] =
            [0, 1].map(|half| 4 + 8 * (2 * sub + half)).map(|at| [from.words(at), from.words(at + 4)]);
        let [c, d] = [a, b].map(|[first, second]| [first >> 4, second >> 4]);
        to.put_codes([a[0], a[1], c[0], c[1], b[0], b[1], d[0], d[1]]);
    }
}

/// The formats whose packed codes are made from the integers that blocks stand for. Decoding takes most of the time, so this is
/// compiled once, not for each instruction set.
#[inline(never)]
fn by_integers<const R: usize>(dtype: DType, lanes: usize, lane: usize, rows: &[&[u8]; R], out: &mut [u8]) {
    let stored = dtype.block_bytes();
    let code_of = code_of(dtype);
    let (mut codes, mut scales, mut d) = ([[0; 256]; R], [[0; 16]; R], [[0; 2]; R]);
    for (i, out) in out.chunks_exact_mut(block_bytes(dtype, lanes)).enumerate() {
        for row in 0..R {
            let src = &rows[row][i * stored..][..stored];
            let block = integers(dtype, src);
            let block = block.unwrap_or_else(|| unreachable!("{dtype} blocks of whole size have integers"));
            codes[row] = block.codes.map(|code| code_of[usize::from(code as u8)]);
            scales[row] = block.scales.map(i8::cast_unsigned);
            d[row] = match dtype {
                DType::IQ1_M => half::f16::from_f32(Coding::F16Nibbles.get(&src[48..])).to_le_bytes(),
                DType::TQ1_0 | DType::TQ2_0 | DType::Q3_K => [src[stored - 2], src[stored - 1]],
                _ => [src[0], src[1]],
            };
        }
        let (codes, scales) = (Blocks(codes.each_ref()), Blocks(scales.each_ref()));
        let mut to = Place { out, lanes, lane, at: 0 };
        to.put(d);
        match dtype {
            DType::TQ1_0 | DType::TQ2_0 => {}
            DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => {
                (0..8).for_each(|i| to.put(scales.bytes::<1>(2 * i)))
            }
            _ => (0..16).for_each(|i| to.put(scales.bytes::<1>(i))),
        }
        for sub in 0..8 {
            let codes = codes.eight(32 * sub);
            match dtype {
                DType::TQ1_0 | DType::TQ2_0 => to.put_two_bits(codes),
                DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => to.put_codes(codes),
                _ => {
                    to.put_bits(shifted(codes, 2));
                    to.put_two_bits(codes);
                }
            }
        }
    }
}

/// For each signed byte the code that weights of that value get.
fn code_of(dtype: DType) -> [u8; 256] {
    let offset = |by: u8| std::array::from_fn(|code| (code as u8).wrapping_add(by));
    match dtype {
        DType::TQ1_0 | DType::TQ2_0 => offset(1),
        DType::Q3_K => offset(4),
        _ => inverse(book(dtype)),
    }
}
