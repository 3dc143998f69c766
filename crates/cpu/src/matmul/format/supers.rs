//! Blocks of 256 whose sub-blocks have small integers as scales, with unsigned codes.

use super::{Format, dots, each_code, moved, shifted_dots, splat_at, twice};
use crate::isa::Isa;
use crate::matmul::codes::Codes;
use crate::quant::{ActBlock, BLOCK};
use std::marker::PhantomData;
use tensor::DType;

/// `(d * scale) * code - dmin * min`: Q4_K, and with `SPLIT` Q5_K.
pub(in crate::matmul) struct SuperAffine<C, const SPLIT: bool>(PhantomData<C>);
/// `(d * scale) * (code - OFFSET)` in sub-blocks of 16: Q3_K, Q6_K.
pub(in crate::matmul) struct SuperSymmetric<C, const OFFSET: i32>(PhantomData<C>);
/// `(d * scale) * code - dmin * min` in sub-blocks of 16: Q2_K.
pub(in crate::matmul) struct SuperHalves<C>(PhantomData<C>);

impl<C: Codes, const SPLIT: bool> SuperAffine<C, SPLIT> {
    /// Offset of the sub-blocks' scales, in bytes per row; then d and dmin lie before, the minima and codes after.
    const SCALES: usize = 4;
    const MINS: usize = 12;
    const CODES: usize = 20;
}

impl<C: Codes, const SPLIT: bool> Format for SuperAffine<C, SPLIT> {
    const SUBS: usize = 8;
    const HEADER: usize = Self::CODES;
    type Book<S: Isa> = ();

    #[inline(always)]
    fn book<S: Isa>(_: S, _: DType) {}

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        (): (),
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        let mut a = [[s.splat(0.0); T]; G];
        // SAFETY: fields of a packed block, and 8 activation blocks.
        unsafe {
            for sub in 0..8 {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (Self::CODES + sub * C::BYTES) * S::LANES);
                let mut dot = [[[s.dot_zero(); T]; G]; 2];
                dots::<S, C, SPLIT, G, T>(s, &codes, &x, ahead, &mut dot);
                for g in 0..G {
                    let scale = s.scale(s.load_u8(w[g].add((Self::SCALES + sub) * S::LANES)));
                    for t in 0..T {
                        let mut sum = s.dot_scaled(dot[0][g][t], scale);
                        if SPLIT {
                            sum = s.add_i(sum, s.dot_scaled(dot[1][g][t], scale));
                        }
                        a[g][t] = s.fma(s.cvt(sum), splat_at(s, x[t], ActBlock::SCALE), a[g][t]);
                    }
                }
            }
            // The minima come second: their sums need not hold registers while the products run.
            let mut b = [[s.splat(0.0); T]; G];
            for sub in 0..8 {
                for g in 0..G {
                    let min = s.cvt(s.load_u8(w[g].add((Self::MINS + sub) * S::LANES)));
                    for t in 0..T {
                        let sum = splat_at(s, x[t], sub * size_of::<ActBlock>() + ActBlock::SUM);
                        b[g][t] = s.fma(min, sum, b[g][t]);
                    }
                }
            }
            for g in 0..G {
                let (d, dmin) = (s.load_f16(w[g].cast()), s.load_f16(w[g].add(2 * S::LANES).cast()));
                for t in 0..T {
                    acc[g][t] = s.fnma(dmin, b[g][t], s.fma(d, a[g][t], acc[g][t]));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, (): (), w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: fields of a packed block.
        unsafe {
            let scale = s.cvt(s.load_u8(w.add((Self::SCALES + sub) * S::LANES)));
            let min = s.cvt(s.load_u8(w.add((Self::MINS + sub) * S::LANES)));
            let step = s.mul(s.load_f16(w.cast()), scale);
            let offset = s.mul(s.load_f16(w.add(2 * S::LANES).cast()), min);
            let codes = w.add((Self::CODES + sub * C::BYTES) * S::LANES);
            each_code::<S, C>(s, codes, out, |code| s.sub(s.mul(step, s.cvt(code)), offset));
        }
    }
}

impl<C: Codes, const OFFSET: i32> SuperSymmetric<C, OFFSET> {
    /// Offset of the sub-blocks' scales, in bytes per row; d lies before, the codes after.
    const SCALES: usize = 2;
    const CODES: usize = 18;
}

impl<C: Codes, const OFFSET: i32> Format for SuperSymmetric<C, OFFSET> {
    const SUBS: usize = 8;
    const HEADER: usize = Self::CODES;
    type Book<S: Isa> = ();

    #[inline(always)]
    fn book<S: Isa>(_: S, _: DType) {}

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        (): (),
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        let offset = twice(s, -OFFSET);
        let mut a = [[s.splat(0.0); T]; G];
        // SAFETY: fields of a packed block, and 8 activation blocks.
        unsafe {
            for sub in 0..8 {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (Self::CODES + sub * C::BYTES) * S::LANES);
                let dot = shifted_dots::<S, C, true, G, T>(s, offset, &codes, &x, ahead);
                for g in 0..G {
                    let scales = w[g].add((Self::SCALES + 2 * sub) * S::LANES);
                    let scales = [s.scale(s.load_i8(scales)), s.scale(s.load_i8(scales.add(S::LANES)))];
                    for t in 0..T {
                        let sum = s.add_i(
                            s.dot_scaled(dot[0][g][t], scales[0]),
                            s.dot_scaled(dot[1][g][t], scales[1]),
                        );
                        a[g][t] = s.fma(s.cvt(sum), splat_at(s, x[t], ActBlock::SCALE), a[g][t]);
                    }
                }
            }
            for g in 0..G {
                let d = s.load_f16(w[g].cast());
                for t in 0..T {
                    acc[g][t] = s.fma(d, a[g][t], acc[g][t]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, (): (), w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: fields of a packed block.
        unsafe {
            let d = s.load_f16(w.cast());
            let codes = w.add((Self::CODES + sub * C::BYTES) * S::LANES);
            let offset = s.splat_i(OFFSET);
            each_code::<S, C>(s, codes, out, |code| s.cvt(s.sub_i(code, offset)));
            for h in 0..2 {
                let scale = s.cvt(s.load_i8(w.add((Self::SCALES + 2 * sub + h) * S::LANES)));
                let step = s.mul(d, scale);
                for out in &mut out[16 * h..][..16] {
                    *out = s.mul(step, *out);
                }
            }
        }
    }
}

impl<C: Codes> SuperHalves<C> {
    /// Offset of the bytes of scale (low nibble) and minimum (high one), in bytes per row; d and dmin lie before, the codes
    /// after.
    const SCALES: usize = 4;
    const CODES: usize = 20;
}

impl<C: Codes> Format for SuperHalves<C> {
    const SUBS: usize = 8;
    const HEADER: usize = Self::CODES;
    type Book<S: Isa> = ();

    #[inline(always)]
    fn book<S: Isa>(_: S, _: DType) {}

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        (): (),
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        let mut a = [[s.splat(0.0); T]; G];
        let mut b = [[s.splat(0.0); T]; G];
        let (nibble, one) = (s.splat_i(15), twice(s, 1));
        // SAFETY: fields of a packed block, and 8 activation blocks.
        unsafe {
            for sub in 0..8 {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (Self::CODES + sub * C::BYTES) * S::LANES);
                let mut dot = [[[s.dot_zero(); T]; G]; 2];
                dots::<S, C, true, G, T>(s, &codes, &x, ahead, &mut dot);
                for g in 0..G {
                    let both = w[g].add((Self::SCALES + 2 * sub) * S::LANES);
                    let both = [s.load_u8(both), s.load_u8(both.add(S::LANES))];
                    let scales = both.map(
                        #[inline(always)]
                        |both| s.scale(s.and_i(both, nibble)),
                    );
                    let mins = both.map(
                        #[inline(always)]
                        |both| s.scale(s.shr::<4>(both)),
                    );
                    for t in 0..T {
                        let xs = splat_at(s, x[t], ActBlock::SCALE);
                        let sum = s.add_i(
                            s.dot_scaled(dot[0][g][t], scales[0]),
                            s.dot_scaled(dot[1][g][t], scales[1]),
                        );
                        a[g][t] = s.fma(s.cvt(sum), xs, a[g][t]);
                        // The pairs of a half are its sum in two parts.
                        let half = s.dot_shifted(s.broadcast_i(x[t].add(ActBlock::PAIRS)), one);
                        let other = s.dot_shifted(s.broadcast_i(x[t].add(ActBlock::PAIRS + 4)), one);
                        let sum = s.add_i(s.dot_scaled(half, mins[0]), s.dot_scaled(other, mins[1]));
                        b[g][t] = s.fma(s.cvt(sum), xs, b[g][t]);
                    }
                }
            }
            for g in 0..G {
                let (d, dmin) = (s.load_f16(w[g].cast()), s.load_f16(w[g].add(2 * S::LANES).cast()));
                for t in 0..T {
                    acc[g][t] = s.fnma(dmin, b[g][t], s.fma(d, a[g][t], acc[g][t]));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, (): (), w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: fields of a packed block.
        unsafe {
            let codes = w.add((Self::CODES + sub * C::BYTES) * S::LANES);
            each_code::<S, C>(s, codes, out, |code| s.cvt(code));
            let (d, dmin) = (s.load_f16(w.cast()), s.load_f16(w.add(2 * S::LANES).cast()));
            for h in 0..2 {
                let both = s.load_u8(w.add((Self::SCALES + 2 * sub + h) * S::LANES));
                let step = s.mul(d, s.cvt(s.and_i(both, s.splat_i(15))));
                let offset = s.mul(dmin, s.cvt(s.shr::<4>(both)));
                for out in &mut out[16 * h..][..16] {
                    *out = s.sub(s.mul(step, *out), offset);
                }
            }
        }
    }
}
