//! Formats whose codes are few levels: out of a book, 4-bit floats, ternary, signs.

use super::pack;
use super::search::{book, code, extreme, inverse, nearest};
use crate::DType;
use crate::blocks::{iq4_nl, mxfp4, nvfp4};

/// IQ4_NL.
pub(super) fn iq4_nl(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let d = pack::half(out, 0, book(x, w, &iq4_nl::LEVELS));
    pack::nibbles(&mut out[2..], &book_codes(x, d));
    d.is_finite()
}

fn book_codes(x: &[f32], d: f32) -> [u8; 32] {
    let inverse = inverse(d);
    std::array::from_fn(|i| nearest(x[i] * inverse, &iq4_nl::LEVELS) as u8)
}

/// IQ4_XS.
pub(super) fn iq4_xs(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let steps: [f32; 8] =
        std::array::from_fn(|i| book(&x[32 * i..][..32], &w[32 * i..][..32], &iq4_nl::LEVELS));
    let d = pack::half(out, 0, extreme(&steps) / -32.0);
    let inverse = inverse(d);
    out[2..8].fill(0);
    for (i, step) in steps.iter().enumerate() {
        let scale = code(*step, inverse, -32.0, 31.0);
        let stored = (scale + 32.0) as u8;
        out[2 + i / 4] |= (stored >> 4) << (i % 4 * 2);
        out[4 + i / 2] |= (stored & 15) << (i % 2 * 4);
        pack::nibbles(&mut out[8 + 16 * i..][..16], &book_codes(&x[32 * i..], d * scale));
    }
    d.is_finite()
}

/// Indices of the levels of 4-bit floats, smallest level first.
const ASCENDING: [u8; 15] = [15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7];

/// The code of the 4-bit float nearest to `x`, of two equally near the one of lower code.
fn float(x: f32) -> u8 {
    let off = |code: &u8| (f32::from(mxfp4::LEVELS[usize::from(*code)]) - x).abs();
    let mut best = ASCENDING[0];
    for code in &ASCENDING[1..] {
        if off(code) < off(&best) || (off(code) == off(&best) && *code < best) {
            best = *code;
        }
    }
    best
}

/// The weighted squared error with 4-bit floats in steps of `d`.
fn float_error(x: &[f32], w: &[f32], d: f32) -> f32 {
    let inverse = inverse(d);
    let of = |(x, w): (&f32, &f32)| {
        let off = d * f32::from(mxfp4::LEVELS[usize::from(float(x * inverse))]) - x;
        w * off * off
    };
    x.iter().zip(w).map(of).sum()
}

/// The best of some stored scales, the first of equals.
fn best_scale(x: &[f32], w: &[f32], stored: impl Iterator<Item = u8>, scale: fn(u8) -> f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for byte in stored {
        let error = float_error(x, w, scale(byte));
        if error < best.0 {
            best = (error, byte);
        }
    }
    best.1
}

/// MXFP4: the power of two with which the largest magnitude lies in the range of the levels, or one of its neighbours.
pub(super) fn mxfp4(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let largest = extreme(x).abs();
    let exponent = if largest > 0.0 { largest.log2().floor() as i32 - 2 + 127 } else { 0 };
    let near = [exponent, exponent + 1, exponent - 1].map(|e| e.clamp(0, 254) as u8);
    out[0] = if largest > 0.0 { best_scale(x, w, near.into_iter(), mxfp4::scale) } else { 0 };
    // Steps as small as 2^-128 have no finite reciprocal in f32.
    let inverse = 1.0 / f64::from(mxfp4::scale(out[0]));
    let codes: [u8; 32] = std::array::from_fn(|i| float((f64::from(x[i]) * inverse) as f32));
    pack::nibbles(&mut out[1..], &codes);
    true
}

/// NVFP4: for each 16 weights the best of the scales with which the largest magnitude comes near the ends of the levels.
pub(super) fn nvfp4(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let mut fits = true;
    for (sub, (x, w)) in x.chunks_exact(16).zip(w.chunks_exact(16)).enumerate() {
        let largest = extreme(x).abs();
        // Between the largest level, 12, and its neighbour below, 8, with room for rounding.
        let useful = |byte: &u8| (6.0..=14.0).contains(&(largest / nvfp4::scale(*byte)));
        let byte = best_scale(x, w, (1..0x7f).filter(useful).chain([1]), nvfp4::scale);
        fits &= largest <= 14.0 * nvfp4::scale(0x7e);
        out[sub] = if largest > 0.0 { byte } else { 0 };
        let inverse = inverse(nvfp4::scale(out[sub]));
        let codes: [u8; 16] = std::array::from_fn(|i| float(x[i] * inverse));
        for j in 0..8 {
            out[4 + 8 * sub + j] = codes[j] | codes[j + 8] << 4;
        }
    }
    fits
}

/// Q1_0: the scale is the mean magnitude, which is the best one for given signs.
pub(super) fn signs(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let (sum, all) = x.iter().zip(w).fold((0.0, 0.0), |(sum, all), (x, w)| (sum + w * x.abs(), all + w));
    out[2..].fill(0);
    x.iter().enumerate().for_each(|(i, x)| out[2 + i / 8] |= u8::from(*x >= 0.0) << (i % 8));
    pack::half(out, 0, sum / all).is_finite()
}

/// TQ1_0 and TQ2_0: the scale is the largest magnitude. The very bits that GGML writes.
pub(super) fn ternary(dtype: DType, x: &[f32], out: &mut [u8]) -> bool {
    let largest = extreme(x).abs();
    let inverse = if largest == 0.0 { 0.0 } else { 1.0 / largest };
    let code = |i: usize| ((x[i] * inverse).round().clamp(-1.0, 1.0) + 1.0) as u8;
    let codes: [u8; 256] = std::array::from_fn(code);
    if dtype == DType::TQ2_0 {
        pack::two_bits(&mut out[..64], &codes);
        return pack::half(out, 64, largest).is_finite();
    }
    // Bytes, how many digits each has, and the weight of the first digit of the first: see the decoder.
    for (bytes, digits, weight) in [(0..32, 5, 0), (32..48, 5, 160), (48..52, 4, 240)] {
        let count = bytes.len();
        for (j, out) in out[bytes].iter_mut().enumerate() {
            let digit = |n: usize| if n < digits { u16::from(codes[weight + count * n + j]) } else { 0 };
            let number = (0..5).fold(0, |number, n| 3 * number + digit(n));
            // As a fraction of 256, rounded up, so that the digits come out when it is multiplied by three.
            *out = (number * 256).div_ceil(243) as u8;
        }
    }
    pack::half(out, 52, largest).is_finite()
}
