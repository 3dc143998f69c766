//! Random tensors in storage form, made where they are written.
//!
//! Word `i` of a tensor is a hash of (seed, tensor, i), so any part can be made alone, in any order, by any thread. Codes
//! are random bits as they are; the scales of a block are written over them.

use gristmill::parts::tensor::blocks::{Coding, Field, Role, fields};
use gristmill::parts::tensor::{DType, blocks};

/// What a tensor holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Values of mean 0, as small as keeps a product with a row of unit values at unit size.
    Matrix(DType),
    /// Gains a little above 1, in F32.
    Norm,
    /// These values, in F32.
    Table(Vec<f32>),
}

impl Content {
    /// How it is stored.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Content::Matrix(dtype) => *dtype,
            Content::Norm | Content::Table(_) => DType::F32,
        }
    }
}

/// Makes the bytes of one tensor.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    key: u64,
    pattern: Pattern,
    block_bytes: usize,
}

#[derive(Clone, Debug)]
enum Pattern {
    /// In every word, the bits of `keep` stay random and those of `set` are set.
    Mask {
        keep: u64,
        set: u64,
    },
    /// In every block, one of four values for each real number.
    Scales(Vec<Choice>),
    Table(Vec<u8>),
}

/// Four values of a real number of a block.
#[derive(Clone, Debug)]
struct Choice {
    field: Field,
    values: [f32; 4],
    /// As they are stored, where that is in bytes of their own.
    stored: [[u8; 4]; 4],
    len: usize,
}

impl Choice {
    fn new(field: Field, values: [f32; 4]) -> Choice {
        let len = match field.coding {
            Coding::F16 => 2,
            Coding::F32 => 4,
            Coding::E8M0 | Coding::E4M3 => 1,
            Coding::F16Nibbles => 0,
        };
        let stored = values.map(|value| {
            let mut bytes = [0; 4];
            if len > 0 {
                field.coding.put(&mut bytes, value);
            }
            bytes
        });
        Choice { field, values, stored, len }
    }

    fn put(&self, block: &mut [u8], choice: usize) {
        match self.len {
            0 => self.field.put(block, self.values[choice]),
            len => block[self.field.at..][..len].copy_from_slice(&self.stored[choice][..len]),
        }
    }
}

/// Blocks of a part: parts begin at multiples of this, which lie on words for every block size.
pub(super) const PART: usize = 4096;

/// Blocks that are decoded to learn how large values of a type are.
const SAMPLE: usize = 256;

impl Fill {
    /// For tensor number `tensor`, whose rows have `k` elements.
    pub(super) fn new(seed: u64, tensor: usize, content: &Content, k: usize) -> Fill {
        let dtype = content.dtype();
        let key = mix(mix(seed).wrapping_add(tensor as u64));
        let size = (k as f64).sqrt().recip();
        let pattern = match content {
            Content::Table(values) => Pattern::Table(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Content::Norm => Pattern::Mask { keep: twice(0x000f_ffff), set: twice(0x3f80_0000) },
            Content::Matrix(DType::F32) => {
                Pattern::Mask { keep: twice(0x807f_ffff), set: twice(exponent(size, 127) << 23) }
            }
            Content::Matrix(DType::BF16) => {
                Pattern::Mask { keep: twice(0x807f_807f), set: twice(exponent(size, 127) * 0x0080_0080) }
            }
            Content::Matrix(DType::F16) => {
                Pattern::Mask { keep: twice(0x83ff_83ff), set: twice(exponent(size, 15) * 0x0400_0400) }
            }
            Content::Matrix(dtype) => Pattern::Scales(scales(*dtype, size)),
        };
        Fill { key, pattern, block_bytes: dtype.block_bytes() }
    }

    /// The blocks from `first` on, a multiple of [`PART`].
    pub(super) fn fill(&self, first: usize, out: &mut [u8]) {
        let start = first * self.block_bytes;
        if let Pattern::Table(bytes) = &self.pattern {
            return out.copy_from_slice(&bytes[start..start + out.len()]);
        }
        let (keep, set) = match self.pattern {
            Pattern::Mask { keep, set } => (keep, set),
            _ => (u64::MAX, 0),
        };
        let word = |i: usize| {
            let random = mix(self.key.wrapping_add((start / 8 + i) as u64));
            (random & keep | set).to_le_bytes()
        };
        let (words, rest) = out.as_chunks_mut::<8>();
        words.iter_mut().enumerate().for_each(|(i, w)| *w = word(i));
        rest.copy_from_slice(&word(words.len())[..rest.len()]);
        if let Pattern::Scales(choices) = &self.pattern {
            for block in out.chunks_exact_mut(self.block_bytes) {
                for choice in choices {
                    // Two random bits that the scale replaces.
                    let which = usize::from(block[choices[0].field.at] & 3);
                    choice.put(block, which);
                }
            }
        }
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on a counter.
fn mix(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn twice(half: u32) -> u64 {
    u64::from(half) << 32 | u64::from(half)
}

/// The exponent field of values of this size, whose sign and mantissa are random: between 1 and 2 times a power of two,
/// their root mean square is `sqrt(7 / 3)` times it.
fn exponent(size: f64, bias: i32) -> u32 {
    let power = (size / (7.0f64 / 3.0).sqrt()).log2().round() as i32;
    (power + bias).max(1) as u32
}

/// How large the second real number of a block is in steps of the first one, so that the mean is 0: it is added, or
/// subtracted times a code of the same range as that of the first one.
fn second(dtype: DType) -> f64 {
    match dtype {
        DType::Q4_1 => -7.5,
        DType::Q5_1 => -15.5,
        DType::Q4_K => 7.5,
        DType::Q5_K => 15.5,
        DType::Q2_K => 1.5,
        _ => 0.0,
    }
}

/// The scales that give values of this root mean square.
fn scales(dtype: DType, size: f64) -> Vec<Choice> {
    let choices = |step: f64| -> Vec<Choice> {
        let one = |field: &Field| {
            let share = if field.role == Role::Scale { 1.0 } else { second(dtype) };
            let value = |i: u32| (step * share * (0.85 + 0.1 * f64::from(i))) as f32;
            Choice::new(*field, [value(0), value(1), value(2), value(3)])
        };
        fields(dtype).iter().map(one).collect()
    };
    let unit = Fill { key: 0, pattern: Pattern::Scales(choices(1.0)), block_bytes: dtype.block_bytes() };
    let mut stored = vec![0; SAMPLE * dtype.block_bytes()];
    unit.fill(0, &mut stored);
    let mut values = vec![0.0f32; SAMPLE * dtype.block_len()];
    // The sizes fit, so only a type without real values could fail, and none of those is asked for.
    let _ = blocks::decode(dtype, &stored, &mut values);
    let squares: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
    let unit = (squares / values.len() as f64).sqrt();
    choices(size / unit.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(content: &Content, blocks: usize, k: usize) -> Vec<u8> {
        let mut bytes = vec![0; blocks * content.dtype().block_bytes()];
        Fill::new(3, 5, content, k).fill(0, &mut bytes);
        bytes
    }

    fn decoded(content: &Content, blocks: usize, k: usize) -> Vec<f32> {
        let mut values = vec![0.0; blocks * content.dtype().block_len()];
        blocks::decode(content.dtype(), &stored(content, blocks, k), &mut values).unwrap();
        values
    }

    #[test]
    fn values_are_of_mean_zero_and_of_the_size_asked_for() {
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::U32) {
            for k in [64, 4096, 12288] {
                let values = decoded(&Content::Matrix(dtype), 1 << 14, k);
                let n = values.len() as f64;
                let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
                let rms = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
                let size = (k as f64).sqrt().recip();
                // Plain types and MXFP4 hit a power of two; codes that reach from -8 to 7 have a mean of -0.5 steps, and the
                // four codes of TQ2_0 reach from -1 to 2.
                assert!((0.7..1.42).contains(&(rms / size)), "{dtype} {k}: {rms} for {size}");
                let near = if dtype == DType::TQ2_0 { 0.45 } else { 0.13 };
                assert!(mean.abs() < near * size, "{dtype} {k}: mean {mean}");
            }
        }
    }

    #[test]
    fn gains_are_a_little_above_one() {
        let gains = decoded(&Content::Norm, 999, 999);
        assert!(gains.iter().all(|g| (1.0..1.125).contains(g)));
    }

    #[test]
    fn any_part_can_be_made_alone() {
        for dtype in DType::ALL.into_iter().filter(|d| *d != DType::U32) {
            let content = Content::Matrix(dtype);
            let whole = stored(&content, 2 * PART + 7, 256);
            let mut part = vec![0; (PART + 7) * dtype.block_bytes()];
            Fill::new(3, 5, &content, 256).fill(PART, &mut part);
            assert!(whole[PART * dtype.block_bytes()..] == part, "{dtype}");
        }
    }

    #[test]
    fn seeds_and_tensors_differ() {
        let content = Content::Matrix(DType::Q4_0);
        let bytes = |seed, tensor| {
            let mut bytes = vec![0; 18 * 64];
            Fill::new(seed, tensor, &content, 256).fill(0, &mut bytes);
            bytes
        };
        assert_eq!(bytes(1, 2), bytes(1, 2));
        assert_ne!(bytes(1, 2), bytes(2, 2));
        assert_ne!(bytes(1, 2), bytes(1, 3));
        assert_ne!(bytes(1, 2), bytes(2, 1));
    }
}
