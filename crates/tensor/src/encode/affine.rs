//! Formats whose codes count up from a minimum.

use super::pack;
use super::search::{affine, code, inverse};
use crate::DType;

/// Q4_1 and Q5_1.
pub(super) fn legacy(dtype: DType, x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let five = dtype == DType::Q5_1;
    let high = if five { 31 } else { 15 };
    let (d, m) = affine(x, w, high, false);
    let (d, m) = (pack::half(out, 0, d), pack::half(out, 2, m));
    let mut codes = [0; 32];
    put_codes(&mut codes, x, d, m, high);
    if five {
        pack::fifth_bits(&mut out[4..8], &codes);
    }
    pack::nibbles(&mut out[if five { 8 } else { 4 }..], &codes);
    d.is_finite() && m.is_finite()
}

fn put_codes(codes: &mut [u8], x: &[f32], d: f32, m: f32, high: i32) {
    let inverse = inverse(d);
    for (to, x) in codes.iter_mut().zip(x) {
        *to = code(x - m, inverse, 0.0, high as f32) as u8;
    }
}

/// Steps and minima of `N` sub-blocks, and the factors they are multiples of: steps and minima up to `most`.
struct Subs<const N: usize> {
    d: f32,
    dmin: f32,
    scales: [u8; N],
    mins: [u8; N],
}

impl<const N: usize> Subs<N> {
    /// The factors are stored at byte `at` and after it.
    fn find(x: &[f32], w: &[f32], high: i32, most: f32, out: &mut [u8], at: usize) -> Subs<N> {
        let len = x.len() / N;
        let found: [(f32, f32); N] =
            std::array::from_fn(|i| affine(&x[len * i..][..len], &w[len * i..][..len], high, true));
        let largest = |part: fn(&(f32, f32)) -> f32| found.iter().map(part).fold(0.0, f32::max);
        let d = pack::half(out, at, largest(|f| f.0) / most);
        let dmin = pack::half(out, at + 2, largest(|f| -f.1) / most);
        let (of_step, of_min) = (inverse(d), inverse(dmin));
        let scales = found.map(|(step, _)| code(step, of_step, 0.0, most) as u8);
        let mins = found.map(|(_, m)| code(-m, of_min, 0.0, most) as u8);
        Subs { d, dmin, scales, mins }
    }

    fn codes(&self, x: &[f32], high: i32) -> [u8; 256] {
        let mut codes = [0; 256];
        let len = 256 / N;
        for (i, (codes, x)) in codes.chunks_exact_mut(len).zip(x.chunks_exact(len)).enumerate() {
            let m = -(self.dmin * f32::from(self.mins[i]));
            put_codes(codes, x, self.d * f32::from(self.scales[i]), m, high);
        }
        codes
    }

    fn is_finite(&self) -> bool {
        self.d.is_finite() && self.dmin.is_finite()
    }
}

/// Q2_K.
pub(super) fn q2_k(x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let subs = Subs::<16>::find(x, w, 3, 15.0, out, 80);
    for (out, (scale, min)) in out.iter_mut().zip(subs.scales.iter().zip(&subs.mins)) {
        *out = scale | min << 4;
    }
    pack::two_bits(&mut out[16..80], &subs.codes(x, 3));
    subs.is_finite()
}

/// Q4_K and Q5_K.
pub(super) fn super_block(dtype: DType, x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    let five = dtype == DType::Q5_K;
    let high = if five { 31 } else { 15 };
    let subs = Subs::<8>::find(x, w, high, 63.0, out, 0);
    pack::scales_mins(&mut out[4..16], &subs.scales, &subs.mins);
    let codes = subs.codes(x, high);
    let at = if five { 48 } else { 16 };
    out[16..].fill(0);
    for (i, code) in codes.iter().enumerate() {
        let (sub, j) = (i / 32, i % 32);
        if five {
            out[16 + j] |= (code >> 4) << sub;
        }
        out[at + sub / 2 * 32 + j] |= (code & 15) << (sub % 2 * 4);
    }
    subs.is_finite()
}
