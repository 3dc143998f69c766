//! Formats whose codes are integers around zero.

use super::pack;
use super::search::{code, extreme, inverse, symmetric};
use crate::DType;

/// Q4_0 and Q5_0.
pub(super) fn legacy(dtype: DType, x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let five = dtype == DType::Q5_0;
    let offset = if five { 16 } else { 8 };
    let d = pack::half(out, 0, symmetric(x, w, -offset, offset - 1));
    let inverse = inverse(d);
    let mut codes = [0; 32];
    for (to, x) in codes.iter_mut().zip(x) {
        *to = (code(*x, inverse, -offset as f32, (offset - 1) as f32) as i32 + offset) as u8;
    }
    if five {
        pack::fifth_bits(&mut out[2..6], &codes);
    }
    pack::nibbles(&mut out[if five { 6 } else { 2 }..], &codes);
    d.is_finite()
}

/// Q8_0: the largest magnitude is 127 steps, and codes are nearest to the step before it was rounded, ties away from zero.
/// These are the very bits that GGML writes.
pub(super) fn eight_bits(x: &[f32], out: &mut [u8]) -> bool {
    let largest = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let step = largest / 127.0;
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    for (out, x) in out[2..].iter_mut().zip(x) {
        // The inverse of a subnormal step is infinite.
        *out = (x * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
    }
    pack::half(out, 0, step).is_finite()
}

/// The scales of 16 sub-blocks as multiples of one, which is stored at byte `at`: signed integers down to `low`.
fn sub_scales(steps: &[f32; 16], low: f32, out: &mut [u8], at: usize) -> (f32, [f32; 16]) {
    let d = pack::half(out, at, extreme(steps) / low);
    let inverse = inverse(d);
    (d, steps.map(|step| code(step, inverse, low, -low - 1.0)))
}

/// The codes of 256 weights, each 16 with a step of their own, shifted by `-low` to be unsigned.
fn codes(x: &[f32], steps: impl Fn(usize) -> f32, low: f32) -> [u8; 256] {
    let mut codes = [0; 256];
    for (i, (codes, x)) in codes.chunks_exact_mut(16).zip(x.chunks_exact(16)).enumerate() {
        let inverse = inverse(steps(i));
        for (to, x) in codes.iter_mut().zip(x) {
            *to = (code(*x, inverse, low, -low - 1.0) - low) as u8;
        }
    }
    codes
}

fn steps(x: &[f32], w: &[f32], low: i32) -> [f32; 16] {
    std::array::from_fn(|i| symmetric(&x[16 * i..][..16], &w[16 * i..][..16], low, -low - 1))
}

/// Q3_K.
pub(super) fn q3_k(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let (d, scales) = sub_scales(&steps(x, w, -4), -32.0, out, 108);
    let codes = codes(x, |i| d * scales[i], -4.0);
    out[..32].fill(0);
    codes.iter().enumerate().for_each(|(i, code)| out[i % 32] |= (code >> 2) << (i / 32));
    pack::two_bits(&mut out[32..96], &codes);
    out[96..108].fill(0);
    for (i, scale) in scales.iter().enumerate() {
        let scale = (scale + 32.0) as u8;
        out[96 + i % 8] |= (scale & 15) << (i / 8 * 4);
        out[104 + i % 4] |= (scale >> 4) << (i / 4 * 2);
    }
    d.is_finite()
}

/// Q6_K.
pub(super) fn q6_k(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let (d, scales) = sub_scales(&steps(x, w, -32), -128.0, out, 208);
    let codes = codes(x, |i| d * scales[i], -32.0);
    out[..192].fill(0);
    for (i, code) in codes.iter().enumerate() {
        let (half, run, j) = (i / 128, i / 32 % 4, i % 32);
        out[half * 64 + run % 2 * 32 + j] |= (code & 15) << (run / 2 * 4);
        out[128 + half * 32 + j] |= (code >> 4) << (2 * run);
    }
    for (out, scale) in out[192..208].iter_mut().zip(scales) {
        *out = scale as i8 as u8;
    }
    d.is_finite()
}
