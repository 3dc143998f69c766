//! Super-blocks whose weights are integers times one factor.

use super::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_xs, q3_k, tq1_0, tq2_0};
use crate::DType;

/// A block of 256 weights as integers: weight `i` is `(d * scales[i / 16]) * codes[i]`. In f32 both products are exact,
/// so that a kernel may multiply in any order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Integers {
    /// The block's scale times the format's power of two.
    pub d: f32,
    /// The scale of each 16 weights.
    pub scales: [i8; 16],
    /// Of each weight.
    pub codes: [i8; 256],
}

impl Integers {
    /// A block whose scales are all 1.
    pub(super) fn plain(d: f32) -> Integers {
        Integers { d, scales: [1; 16], codes: [0; 256] }
    }

    pub(super) fn decode(&self, out: &mut [f32; 256]) {
        for (i, out) in out.chunks_exact_mut(16).enumerate() {
            let step = self.d * f32::from(self.scales[i]);
            for (out, &code) in out.iter_mut().zip(&self.codes[16 * i..]) {
                *out = step * f32::from(code);
            }
        }
    }
}

/// The integers of one stored block, for Q3_K, IQ1, IQ2, IQ3, IQ4_XS and TQ; `None` for other types and other lengths.
pub fn integers(dtype: DType, block: &[u8]) -> Option<Integers> {
    fn of<const N: usize>(block: &[u8], f: fn(&[u8; N]) -> Integers) -> Option<Integers> {
        block.try_into().ok().map(f)
    }
    match dtype {
        DType::Q3_K => of(block, q3_k::integers),
        DType::IQ1_S => of(block, iq1_s::integers),
        DType::IQ1_M => of(block, iq1_m::integers),
        DType::IQ2_XXS => of(block, iq2_xxs::integers),
        DType::IQ2_XS => of(block, iq2_xs::integers),
        DType::IQ2_S => of(block, iq2_s::integers),
        DType::IQ3_XXS => of(block, iq3_xxs::integers),
        DType::IQ3_S => of(block, iq3_s::integers),
        DType::IQ4_XS => of(block, iq4_xs::integers),
        DType::TQ1_0 => of(block, tq1_0::integers),
        DType::TQ2_0 => of(block, tq2_0::integers),
        _ => None,
    }
}

/// The eight signs that seven bits stand for: the eighth makes the number of minus signs even.
pub(super) fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Writes the values of an entry of a code book: `BITS` bits each index `magnitudes`, and a set bit of `signs` negates.
pub(super) fn entry<const BITS: usize>(out: &mut [i8], entry: u16, magnitudes: &[i8], signs: u8) {
    for (i, out) in out.iter_mut().enumerate() {
        let magnitude = magnitudes[usize::from(entry >> (BITS * i)) & ((1 << BITS) - 1)];
        *out = if signs >> i & 1 == 1 { -magnitude } else { magnitude };
    }
}
