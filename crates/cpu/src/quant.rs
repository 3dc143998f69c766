//! Activations as 8-bit codes, the `fast` input of matrix products.
//!
//! There is one form for every weight format: blocks of 32 along a row, each with symmetric 8-bit codes and a scale of
//! its own. A row is quantised once and serves every matrix that reads it.

use crate::isa::{CpuIsa, Isa, Kernel};
use bytemuck::{Pod, Zeroable};

/// Elements of a block.
pub const BLOCK: usize = 32;

/// The smallest magnitude that counts: a block whose values all lie below it becomes zeros, because the reciprocal of
/// its scale could overflow. 2^-100.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// 32 activations: `x[i]` is about `scale * codes[i]`. One cache line, so that broadcasts of its codes hit it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ActBlock {
    /// From -127 to 127.
    pub codes: [i8; BLOCK],
    /// The largest magnitude divided by 127; NaN when an activation is not finite, so that the product is NaN too.
    pub scale: f32,
    /// `scale` times the sum of the codes: what a weight's constant part multiplies.
    pub sum: f32,
    /// Sums of codes for [`Isa::dot_shifted`]: in each pair the codes at positions 0 and 1 modulo 4, and those at 2 and 3;
    /// of the first half, of the second half, and of the whole block.
    pub pairs: [[i16; 2]; 3],
    unused: [u32; 3],
}

impl ActBlock {
    /// Byte offset of the scale.
    pub(crate) const SCALE: usize = std::mem::offset_of!(ActBlock, scale);
    /// Byte offset of the scaled sum.
    pub(crate) const SUM: usize = std::mem::offset_of!(ActBlock, sum);
    /// Byte offset of the pair sums: first half, second half, whole.
    pub(crate) const PAIRS: usize = std::mem::offset_of!(ActBlock, pairs);
}

/// Quantises one row: `x` has `32 * out.len()` elements. Codes are rounded to nearest, ties to even. The same bits on
/// every instruction set.
///
/// # Panics
/// When the lengths do not fit each other.
pub fn quantise_row(isa: CpuIsa, x: &[f32], out: &mut [ActBlock]) {
    assert!(x.len() == out.len() * BLOCK, "{} activations, {} blocks", x.len(), out.len());
    isa.run(QuantiseRow { x, out });
}

/// [`quantise_row`] within another kernel, of as many blocks as both have.
#[inline(always)]
pub(crate) fn quantise<S: Isa>(s: S, x: &[f32], out: &mut [ActBlock]) {
    for (x, out) in x.as_chunks::<BLOCK>().0.iter().zip(out) {
        *out = block(s, x);
    }
}

struct QuantiseRow<'a> {
    x: &'a [f32],
    out: &'a mut [ActBlock],
}

impl Kernel for QuantiseRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        quantise(s, self.x, self.out);
    }
}

#[inline(always)]
fn block<S: Isa>(s: S, x: &[f32; BLOCK]) -> ActBlock {
    // Magnitudes compare as integers, where infinities and NaN lie above every finite value.
    let mut largest = s.splat_i(0);
    for at in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: `LANES` divides 32, so the load stays inside the block.
        largest = s.max_i(largest, s.bits(s.abs(unsafe { s.load(x.as_ptr().add(at)) })));
    }
    let largest = s.largest_i(largest);
    let amax = f32::from_bits(largest as u32);
    let mut out = ActBlock::zeroed();
    if amax < SMALLEST {
        return out;
    }
    if !amax.is_finite() {
        (out.scale, out.sum) = (f32::NAN, f32::NAN);
        return out;
    }
    out.scale = amax / 127.0;
    // |x| / amax * 127 exceeds 127 by two roundings at most, so no code needs clamping.
    let inverse = s.splat(127.0 / amax);
    for at in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: as above, for the values and for their codes.
        unsafe {
            let scaled = s.mul(s.load(x.as_ptr().add(at)), inverse);
            s.store_low_bytes(out.codes.as_mut_ptr().add(at).cast(), s.round_i(scaled));
        }
    }
    let [first, second] = s.pair_sums(&out.codes);
    // A sum of 16 codes fits 12 bits.
    let whole = [first[0] + second[0], first[1] + second[1]];
    out.pairs = [first, second, whole];
    out.sum = out.scale * f32::from(whole[0] + whole[1]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(blocks: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        (0..blocks * BLOCK)
            .map(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 10f32.powi(i as i32 / 32 % 9 - 4)
            })
            .collect()
    }

    fn quantise(isa: CpuIsa, x: &[f32]) -> Vec<ActBlock> {
        let mut out = vec![ActBlock::zeroed(); x.len() / BLOCK];
        quantise_row(isa, x, &mut out);
        out
    }

    #[test]
    fn codes_are_nearest_and_sums_are_theirs() {
        let x = row(50, 7);
        for isa in CpuIsa::available() {
            for (x, block) in x.chunks(BLOCK).zip(quantise(isa, &x)) {
                let amax = x.iter().fold(0f32, |a, x| a.max(x.abs()));
                assert_eq!(block.scale, amax / 127.0);
                assert_eq!(block.codes.iter().map(|c| c.unsigned_abs()).max(), Some(127));
                for (x, &code) in x.iter().zip(&block.codes) {
                    let off = f64::from(*x) / f64::from(amax) * 127.0 - f64::from(code);
                    assert!(off.abs() < 0.50001, "{isa}: {x} became {code}");
                }
                let sum = |keep: &dyn Fn(usize) -> bool| -> i16 {
                    (0..32).filter(|&i| keep(i)).map(|i| i16::from(block.codes[i])).sum()
                };
                assert_eq!(block.sum, block.scale * f32::from(sum(&|_| true)));
                assert_eq!(block.pairs[0], [sum(&|i| i < 16 && i % 4 < 2), sum(&|i| i < 16 && i % 4 > 1)]);
                assert_eq!(block.pairs[1], [sum(&|i| i > 15 && i % 4 < 2), sum(&|i| i > 15 && i % 4 > 1)]);
                assert_eq!(block.pairs[2], [sum(&|i| i % 4 < 2), sum(&|i| i % 4 > 1)]);
            }
        }
    }

    #[test]
    fn every_instruction_set_quantises_to_the_same_bits() {
        let x = row(200, 3);
        let want = quantise(CpuIsa::available()[0], &x);
        for isa in CpuIsa::available() {
            assert_eq!(
                bytemuck::cast_slice::<_, u8>(&quantise(isa, &x)),
                bytemuck::cast_slice::<_, u8>(&want)
            );
        }
    }

    #[test]
    fn ties_go_to_even() {
        let mut x = [0f32; BLOCK];
        (x[0], x[1], x[2], x[3]) = (127.0, 0.5, 1.5, -2.5);
        for isa in CpuIsa::available() {
            assert_eq!(quantise(isa, &x)[0].codes[..4], [127, 0, 2, -2], "{isa}");
        }
    }

    #[test]
    fn what_is_not_finite_stays_visible_and_what_is_tiny_is_zero() {
        for isa in CpuIsa::available() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1f32; BLOCK];
                x[17] = bad;
                let block = quantise(isa, &x)[0];
                assert!(block.scale.is_nan() && block.sum.is_nan(), "{isa} {bad}");
            }
            assert_eq!(quantise(isa, &[1e-38; BLOCK])[0], ActBlock::zeroed());
            assert_eq!(quantise(isa, &[-0.0; BLOCK])[0], ActBlock::zeroed());
        }
    }
}
