//! Where the real numbers of a block lie: for whoever makes blocks, or wants to know what a block's codes alone say.

use super::{f16_at, mxfp4, nvfp4, u32_at};
use crate::DType;
use std::ops::Range;

/// A real number in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its first byte.
    pub at: usize,
    /// How it is stored.
    pub coding: Coding,
    /// What it is for.
    pub role: Role,
}

/// How a real number of a block is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// binary16.
    F16,
    /// The upper nibbles of four u16, the lowest first, are a binary16.
    F16Nibbles,
    /// binary32.
    F32,
    /// The exponent of a power of two, in a byte.
    E8M0,
    /// An 8-bit float without sign.
    E4M3,
}

/// What a real number of a block is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Codes are multiplied with it.
    Scale,
    /// It is added to the product.
    Constant,
    /// The minima of sub-blocks are multiplied with it and subtracted.
    Minimum,
    /// It follows from codes and scale.
    Sum,
}

impl Coding {
    /// The number at the start of `bytes`.
    pub fn get(self, bytes: &[u8]) -> f32 {
        match self {
            Coding::F16 => f16_at(bytes, 0),
            Coding::F16Nibbles => {
                let bits = (0..4).fold(0, |bits, i| bits | u16::from(bytes[2 * i + 1] >> 4) << (4 * i));
                half::f16::from_bits(bits).to_f32()
            }
            Coding::F32 => f32::from_bits(u32_at(bytes, 0)),
            Coding::E8M0 => mxfp4::scale(bytes[0]),
            Coding::E4M3 => nvfp4::scale(bytes[0]),
        }
    }

    /// Stores a number near `value`, or its magnitude where there is no sign; the nearest one in the binary formats.
    pub fn put(self, bytes: &mut [u8], value: f32) {
        match self {
            Coding::F16 => bytes[..2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            Coding::F16Nibbles => {
                let bits = half::f16::from_f32(value).to_bits();
                for i in 0..4 {
                    bytes[2 * i + 1] = bytes[2 * i + 1] & 15 | ((bits >> (4 * i)) as u8) << 4;
                }
            }
            Coding::F32 => bytes[..4].copy_from_slice(&value.to_le_bytes()),
            Coding::E8M0 => bytes[0] = (128.0 + value.abs().log2().round()).clamp(0.0, 255.0) as u8,
            Coding::E4M3 => {
                let off = |byte: &u8| (nvfp4::scale(*byte) - value.abs()).abs();
                bytes[0] = (0..0x7f).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
            }
        }
    }
}

impl Field {
    /// Its value in a block.
    pub fn get(&self, block: &[u8]) -> f32 {
        self.coding.get(&block[self.at..])
    }

    /// Sets it in a block, see [`Coding::put`].
    pub fn put(&self, block: &mut [u8], value: f32) {
        self.coding.put(&mut block[self.at..], value);
    }
}

const fn field(at: usize, coding: Coding, role: Role) -> Field {
    Field { at, coding, role }
}

const fn scale(at: usize) -> Field {
    field(at, Coding::F16, Role::Scale)
}

/// The real numbers of a block of `dtype`, scales first; none for plain types. Every other byte of a block may have any
/// value.
pub fn fields(dtype: DType) -> &'static [Field] {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => &[],
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Q1_0 | DType::IQ4_NL => const { &[scale(0)] },
        DType::Q4_1 | DType::Q5_1 => const { &[scale(0), field(2, Coding::F16, Role::Constant)] },
        DType::Q8_1 => const { &[scale(0), field(2, Coding::F16, Role::Sum)] },
        DType::Q4_K | DType::Q5_K => const { &[scale(0), field(2, Coding::F16, Role::Minimum)] },
        DType::Q2_K => const { &[scale(80), field(82, Coding::F16, Role::Minimum)] },
        DType::Q3_K => const { &[scale(108)] },
        DType::Q6_K => const { &[scale(208)] },
        DType::Q8_K => const { &[field(0, Coding::F32, Role::Scale)] },
        DType::IQ1_M => const { &[field(48, Coding::F16Nibbles, Role::Scale)] },
        DType::IQ1_S | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => const { &[scale(0)] },
        DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => const { &[scale(0)] },
        DType::TQ1_0 => const { &[scale(52)] },
        DType::TQ2_0 => const { &[scale(64)] },
        DType::MXFP4 => const { &[field(0, Coding::E8M0, Role::Scale)] },
        DType::NVFP4 => {
            const E: Coding = Coding::E4M3;
            const S: Role = Role::Scale;
            const { &[field(0, E, S), field(1, E, S), field(2, E, S), field(3, E, S)] }
        }
    }
}

/// The bytes of a block of which all zeros mean code 0 everywhere, where the values are then the format's offset: a
/// minimum, or what is subtracted from codes. Empty for formats without an offset.
pub fn codes(dtype: DType) -> Range<usize> {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q1_0 => 2..dtype.block_bytes(),
        DType::Q4_1 | DType::Q5_1 => 4..dtype.block_bytes(),
        DType::Q4_K | DType::Q5_K => 16..dtype.block_bytes(),
        DType::Q2_K => 16..80,
        DType::Q3_K => 0..96,
        DType::Q6_K => 0..192,
        DType::TQ2_0 => 0..64,
        _ => 0..0,
    }
}
