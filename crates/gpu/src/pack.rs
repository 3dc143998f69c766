//! The layout of weights on the device.
//!
//! A row is cut into blocks of 32 elements. What belongs to the elements lies in planes, each holding the blocks of all
//! rows in order, so that neighbouring lanes, which read neighbouring blocks, read neighbouring words:
//!
//! - *codes*: 4 bits each (4 words a block), 8 bits (8 words), or the elements themselves (16 words of 16-bit types, 32 of
//!   F32). Of 4-bit codes, byte `b` of word `j` holds element `8j + b` below and `8j + 4 + b` above, so that one mask
//!   gives four consecutive elements in the order in which activations lie.
//! - *high*: the codes' further bits, 1 each (1 word a block) or 2 (2 words). The bits of byte lane `b` lie from bit
//!   `8 b` up, in the order of the groups of four elements.
//! - *scales*: what codes are multiplied with, see [`Scales`].

use tensor::DType;
use tensor::blocks::{self, iq4_nl::LEVELS};

/// Elements of a block.
pub(crate) const BLOCK: usize = 32;

/// How the scales of a row lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scales {
    /// There are none.
    None,
    /// One binary16 a block, two in a word.
    Half,
    /// A binary16 scale and minimum in the word of each block.
    HalfPair,
    /// Five words for eight blocks: binary16 scale and minimum of all, then for each block the bytes of its own scale and
    /// minimum (Q4_K, Q5_K), or of the scales of its halves (Q6_K, whose minimum is unused).
    Super,
}

/// The planes of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planes {
    /// Words of codes for a block.
    pub(crate) codes: usize,
    /// Words of high bits for a block.
    pub(crate) high: usize,
    /// Scales.
    pub(crate) scales: Scales,
}

/// The type whose form the weights of a type have on the device: its own, or one that holds exactly the same values.
/// `None` for types that have neither, and for those that are no weights.
pub(crate) fn form(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Some(dtype),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => Some(dtype),
        DType::Q4_K | DType::Q5_K | DType::Q6_K => Some(dtype),
        DType::Q1_0 | DType::TQ1_0 | DType::TQ2_0 => Some(DType::Q4_0),
        DType::Q8_1 | DType::IQ4_NL => Some(DType::Q8_0),
        DType::Q3_K | DType::IQ3_S => Some(DType::Q6_K),
        _ => None,
    }
}

/// Whether matrices of this type can be multiplied with.
pub fn multiplies(dtype: DType) -> bool {
    form(dtype).is_some()
}

/// The planes of a storage type; `None` for types without a form.
pub(crate) fn planes(dtype: DType) -> Option<Planes> {
    let p = |codes, high, scales| Some(Planes { codes, high, scales });
    match form(dtype)? {
        DType::F32 => p(32, 0, Scales::None),
        DType::F16 | DType::BF16 => p(16, 0, Scales::None),
        DType::Q4_0 => p(4, 0, Scales::Half),
        DType::Q5_0 => p(4, 1, Scales::Half),
        DType::Q8_0 => p(8, 0, Scales::Half),
        DType::Q4_1 => p(4, 0, Scales::HalfPair),
        DType::Q5_1 => p(4, 1, Scales::HalfPair),
        DType::Q4_K => p(4, 0, Scales::Super),
        DType::Q5_K => p(4, 1, Scales::Super),
        DType::Q6_K => p(4, 2, Scales::Super),
        _ => None,
    }
}

impl Planes {
    /// Words of each plane for a row of `k` elements, padded to whole blocks: codes, high bits, scales.
    pub(crate) fn row_words(&self, k: usize) -> [usize; 3] {
        let blocks = k.div_ceil(BLOCK);
        let scales = match self.scales {
            Scales::None => 0,
            Scales::Half => blocks.div_ceil(2),
            Scales::HalfPair => blocks,
            Scales::Super => blocks.div_ceil(8) * 5,
        };
        [blocks * self.codes, blocks * self.high, scales]
    }
}

/// Packs one stored row; the planes of the row are zeroed and as long as [`Planes::row_words`] says.
pub(crate) fn pack_row(dtype: DType, stored: &[u8], planes: [&mut [u32]; 3]) {
    let [codes, high, scales] = planes;
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => {
            let whole = stored.len() / 4;
            for (word, bytes) in codes.iter_mut().zip(stored.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            if let [a, b] = stored[4 * whole..] {
                codes[whole] = u32::from(u16::from_le_bytes([a, b]));
            }
        }
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => {
            for (b, block) in stored.chunks_exact(dtype.block_bytes()).enumerate() {
                legacy(dtype, b, block, codes, high, scales);
            }
        }
        DType::Q4_K | DType::Q5_K | DType::Q6_K => {
            for (b, block) in stored.chunks_exact(dtype.block_bytes()).enumerate() {
                super_block(dtype, b, block, codes, high, scales);
            }
        }
        _ => {
            for (b, block) in stored.chunks_exact(dtype.block_bytes()).enumerate() {
                converted(dtype, b, block, codes, high, scales);
            }
        }
    }
}

/// A block in the form of another type, see [`form`].
fn converted(dtype: DType, b: usize, block: &[u8], codes: &mut [u32], high: &mut [u32], scales: &mut [u32]) {
    let blocks = dtype.block_len() / BLOCK;
    let scale = blocks::fields(dtype).first().map_or(0.0, |field| field.get(block));
    let scale = u32::from(half::f16::from_f32(scale).to_bits());
    let whole = blocks::integers(dtype, block);
    for sub in 0..blocks {
        let at = blocks * b + sub;
        let q: [i8; BLOCK] = std::array::from_fn(|i| match (&whole, dtype) {
            (Some(whole), _) => whole.codes[32 * sub + i],
            (None, DType::Q1_0) => 2 * (block[2 + 4 * sub + i / 8] >> (i % 8) & 1) as i8 - 1,
            (None, DType::IQ4_NL) => LEVELS[usize::from(block[2 + i % 16] >> (4 * (i / 16)) & 15)],
            (None, _) => block[4 + i] as i8,
        });
        match form(dtype) {
            Some(DType::Q6_K) => {
                store_codes(
                    &q.map(|q| (q + 32) as u8),
                    2,
                    &mut codes[4 * at..4 * at + 4],
                    &mut high[2 * at..2 * at + 2],
                );
            }
            Some(DType::Q4_0) => {
                store_codes(&q.map(|q| (q + 8) as u8), 0, &mut codes[4 * at..4 * at + 4], &mut []);
            }
            _ => {
                let bytes = q.map(|q| q as u8);
                for (word, bytes) in codes[8 * at..].iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
            }
        }
        if form(dtype) != Some(DType::Q6_K) {
            scales[at / 2] |= scale << (16 * (at % 2));
        }
    }
    if let (Some(whole), Some(DType::Q6_K)) = (&whole, form(dtype)) {
        let scales = &mut scales[5 * b..5 * b + 5];
        scales[0] = scale;
        for (word, four) in scales[1..].iter_mut().zip(whole.scales.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(four.map(|scale| scale as u8));
        }
    }
}

fn half_bits(bytes: &[u8]) -> u32 {
    u32::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Stores 32 codes: the low four bits, and those above in `high` bits.
fn store_codes(q: &[u8; BLOCK], bits: usize, codes: &mut [u32], high: &mut [u32]) {
    for (i, &code) in q.iter().enumerate() {
        let (group, lane) = (i / 4, i % 4);
        codes[group / 2] |= u32::from(code & 15) << (8 * lane + 4 * (group % 2));
        if let Some(per_word) = 8usize.checked_div(bits) {
            let at = 8 * lane + bits * (group % per_word);
            high[group / per_word] |= u32::from(code >> 4) << at;
        }
    }
}

fn legacy(dtype: DType, b: usize, block: &[u8], codes: &mut [u32], high: &mut [u32], scales: &mut [u32]) {
    let has_minimum = matches!(dtype, DType::Q4_1 | DType::Q5_1);
    if has_minimum {
        scales[b] = half_bits(block) | half_bits(&block[2..]) << 16;
    } else {
        scales[b / 2] |= half_bits(block) << (16 * (b % 2));
    }
    let rest = &block[if has_minimum { 4 } else { 2 }..];
    if dtype == DType::Q8_0 {
        for (word, bytes) in codes[8 * b..].iter_mut().zip(rest.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        return;
    }
    let five = matches!(dtype, DType::Q5_0 | DType::Q5_1);
    let (bits, nibbles) = if five { rest.split_at(4) } else { rest.split_at(0) };
    let mut q = [0; BLOCK];
    for (i, code) in q.iter_mut().enumerate() {
        *code = nibbles[i % 16] >> (4 * (i / 16)) & 15;
        if five {
            *code |= (bits[i / 8] >> (i % 8) & 1) << 4;
        }
    }
    let high = if five { &mut high[b..b + 1] } else { &mut high[..0] };
    store_codes(&q, usize::from(five), &mut codes[4 * b..4 * b + 4], high);
}

fn super_block(
    dtype: DType,
    b: usize,
    block: &[u8],
    codes: &mut [u32],
    high: &mut [u32],
    scales: &mut [u32],
) {
    let scales = &mut scales[5 * b..5 * b + 5];
    let six = dtype == DType::Q6_K;
    if six {
        // ql 128, qh 64, scales 16, d 2.
        scales[0] = half_bits(&block[208..]);
        for (word, bytes) in scales[1..].iter_mut().zip(block[192..208].as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    } else {
        scales[0] = half_bits(block) | half_bits(&block[2..]) << 16;
        let packed = &block[4..16];
        for i in 0..8 {
            // Six bits each: the first four scales and minima whole, the others in two parts.
            let (scale, minimum) = if i < 4 {
                (packed[i] & 63, packed[4 + i] & 63)
            } else {
                let low = packed[4 + i];
                (low & 15 | packed[i - 4] >> 6 << 4, low >> 4 | packed[i] >> 6 << 4)
            };
            scales[1 + i / 2] |= (u32::from(scale) | u32::from(minimum) << 8) << (16 * (i % 2));
        }
    }
    let bits = match dtype {
        DType::Q5_K => 1,
        DType::Q6_K => 2,
        _ => 0,
    };
    for sub in 0..8 {
        let mut q = [0; BLOCK];
        for (i, code) in q.iter_mut().enumerate() {
            *code = match dtype {
                DType::Q4_K => block[16 + 32 * (sub / 2) + i] >> (4 * (sub % 2)) & 15,
                DType::Q5_K => {
                    let low = block[48 + 32 * (sub / 2) + i] >> (4 * (sub % 2)) & 15;
                    low | (block[16 + i] >> sub & 1) << 4
                }
                _ => {
                    let (part, quarter) = (sub / 4, sub % 4);
                    let low = block[64 * part + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
                    low | (block[128 + 32 * part + i] >> (2 * quarter) & 3) << 4
                }
            };
        }
        let at = 8 * b + sub;
        let high = &mut high[bits * at..bits * (at + 1)];
        store_codes(&q, bits, &mut codes[4 * at..4 * at + 4], high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element `i` of a packed row, by the documentation above.
    fn element(dtype: DType, i: usize, codes: &[u32], high: &[u32], scales: &[u32]) -> f32 {
        let f16 = |word: u32| half::f16::from_bits(word as u16).to_f32();
        let (b, group, lane) = (i / 32, i % 32 / 4, i % 4);
        let dtype = form(dtype).unwrap();
        if dtype == DType::Q8_0 {
            let q = (codes[8 * b + group] >> (8 * lane)) as u8 as i8;
            return f16(scales[b / 2] >> (16 * (b % 2))) * f32::from(q);
        }
        let mut q = codes[4 * b + group / 2] >> (8 * lane + 4 * (group % 2)) & 15;
        match planes(dtype).unwrap().high {
            1 => q |= (high[b] >> (8 * lane + group) & 1) << 4,
            2 => q |= (high[2 * b + group / 4] >> (8 * lane + 2 * (group % 4)) & 3) << 4,
            _ => {}
        }
        let q = q as f32;
        let of_super = |words: &[u32]| {
            let s = words[1 + b % 8 / 2] >> (16 * (b % 2));
            (f16(words[0]), f16(words[0] >> 16), s as u8, (s >> 8) as u8)
        };
        match dtype {
            DType::Q4_0 => f16(scales[b / 2] >> (16 * (b % 2))) * (q - 8.0),
            DType::Q5_0 => f16(scales[b / 2] >> (16 * (b % 2))) * (q - 16.0),
            DType::Q4_1 | DType::Q5_1 => f16(scales[b]) * q + f16(scales[b] >> 16),
            DType::Q4_K | DType::Q5_K => {
                let (d, dmin, s, m) = of_super(&scales[5 * (b / 8)..]);
                d * f32::from(s) * q - dmin * f32::from(m)
            }
            _ => {
                let (d, _, s0, s1) = of_super(&scales[5 * (b / 8)..]);
                d * f32::from(if group < 4 { s0 } else { s1 } as i8) * (q - 32.0)
            }
        }
    }

    #[test]
    fn packed_elements_are_the_decoded_ones() {
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        for dtype in DType::ALL.into_iter().filter(|d| d.is_quantised() && multiplies(*d)) {
            let k = 3 * 256;
            let mut stored: Vec<u8> = (0..dtype.bytes_for(k).unwrap()).map(|_| random()).collect();
            // Scales that are finite: clear an exponent bit of every half that is one.
            for block in stored.chunks_exact_mut(dtype.block_bytes()) {
                blocks::fields(dtype).iter().for_each(|field| block[field.at + 1] &= !0x40);
            }
            let mut want = vec![0.0; k];
            blocks::decode(dtype, &stored, &mut want).unwrap();
            let [c, h, s] = planes(dtype).unwrap().row_words(k).map(|n| vec![0; n]);
            let (mut c, mut h, mut s) = (c, h, s);
            pack_row(dtype, &stored, [&mut c, &mut h, &mut s]);
            for (i, want) in want.iter().enumerate() {
                assert_eq!(element(dtype, i, &c, &h, &s).to_bits(), want.to_bits(), "{dtype} element {i}");
            }
        }
    }

    #[test]
    fn a_row_of_odd_length_keeps_its_last_element() {
        let stored: Vec<u8> = (0..10).collect();
        let mut codes = vec![0; planes(DType::F16).unwrap().row_words(5)[0]];
        pack_row(DType::F16, &stored, [&mut codes, &mut [], &mut []]);
        assert_eq!((codes[1], codes[2], codes[3]), (0x0706_0504, 0x0908, 0));
    }
}
