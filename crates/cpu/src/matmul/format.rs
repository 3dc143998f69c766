//! What the products need to know of each quantised format: the integer product of a packed block, and its decoding.
//!
//! The order of the f32 operations below is the definition of the `fast` product; it is the same for any number of
//! tokens, of lanes and of threads. `S` are exact integers, `xs` and `xsum` the scale and scaled sum of an activation
//! block, every `fma` rounds once:
//!
//! - symmetric (Q4_0, Q5_0, Q8_0), per 32: `acc = fma(S, d * xs, acc)`
//! - affine (Q4_1, Q5_1), per 32: `acc = fma(S, d * xs, acc)`, then `acc = fma(m, xsum, acc)`
//! - Q4_K, Q5_K, per 256: from zero, over the 8 sub-blocks, `a = fma(scale * S, xs, a)` and `b = fma(min, xsum, b)`; then
//!   `acc = fma(d, a, acc)`, `acc = fma(-dmin, b, acc)`
//! - Q6_K, per 256: from zero, over the 8 activation blocks, `a = fma(scale0 * S0 + scale1 * S1, xs, a)`; then
//!   `acc = fma(d, a, acc)`

use super::codes::Codes;
use crate::isa::Isa;
use crate::quant::{ActBlock, BLOCK};
use std::marker::PhantomData;

/// A quantised format in the packed layout.
pub(super) trait Format {
    /// Activation blocks of 32 in a packed block.
    const SUBS: usize;
    /// Integer sums that run at once for each row and token in [`Format::block`].
    const SUMS: usize;

    /// Adds a packed block of `G` lane groups times the activations of `T` tokens. For one token, which is bound by
    /// memory, the weights `ahead` bytes further are prefetched.
    ///
    /// # Safety
    /// Each `w` must point at a packed block of the format for [`Isa::LANES`] rows, each `x` at [`Format::SUBS`]
    /// [`ActBlock`]s.
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    );

    /// Decodes weights `32 sub` to `32 sub + 31` of each row, in order.
    ///
    /// # Safety
    /// `w` must point at a packed block of the format for [`Isa::LANES`] rows; `sub` must be below [`Format::SUBS`].
    unsafe fn weights<S: Isa>(s: S, w: *const u8, sub: usize, out: &mut [S::F; BLOCK]);
}

/// `d * (code - OFFSET)`: Q4_0, Q5_0.
pub(super) struct Symmetric<C, const OFFSET: i32>(PhantomData<C>);
/// `d * code + m`: Q4_1, and with `SPLIT` Q5_1, whose 32 products do not fit the 16-bit sums of [`Isa::dot`] at once.
pub(super) struct Affine<C, const SPLIT: bool>(PhantomData<C>);
/// `d * code` with 8-bit signed codes: Q8_0.
pub(super) struct Bytes;
/// `(d * scale) * code - dmin * min`: Q4_K, and with `SPLIT` Q5_K.
pub(super) struct SuperAffine<C, const SPLIT: bool>(PhantomData<C>);
/// `(d * scale) * (code - 32)` in sub-blocks of 16: Q6_K.
pub(super) struct SuperSymmetric<C>(PhantomData<C>);

/// One f32 in all lanes.
///
/// # Safety
/// `p + at` must be readable for an aligned f32.
#[inline(always)]
unsafe fn splat_at<S: Isa>(s: S, p: *const u8, at: usize) -> S::F {
    // SAFETY: the caller's contract.
    s.splat(unsafe { p.add(at).cast::<f32>().read() })
}

/// An i16 twice in each lane.
#[inline(always)]
fn twice<S: Isa>(s: S, x: i32) -> S::I {
    s.splat_i(x & 0xffff | x << 16)
}

/// The running sums of `G` lane groups and `T` tokens: of the first and of the second 16 of 32 weights.
type Halves<D, const G: usize, const T: usize> = [[[D; T]; G]; 2];

/// Adds the products of 32 weights. With `SPLIT` the second 16 have sums of their own, else all go to the first.
///
/// # Safety
/// `w` and `x` as for [`Codes::pair`] and [`Format::block`].
#[inline(always)]
unsafe fn dots<S: Isa, C: Codes, const SPLIT: bool, const G: usize, const T: usize>(
    s: S,
    w: &[*const u8; G],
    x: &[*const u8; T],
    ahead: usize,
    dot: &mut Halves<S::Dot, G, T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        step::<S, C, SPLIT, 0, G, T>(s, w, x, ahead, dot);
        step::<S, C, SPLIT, 1, G, T>(s, w, x, ahead, dot);
        step::<S, C, SPLIT, 2, G, T>(s, w, x, ahead, dot);
        step::<S, C, SPLIT, 3, G, T>(s, w, x, ahead, dot);
    }
}

/// Adds the products of 4 weights of each half.
///
/// # Safety
/// As [`dots`].
#[inline(always)]
unsafe fn step<S: Isa, C: Codes, const SPLIT: bool, const J: usize, const G: usize, const T: usize>(
    s: S,
    w: &[*const u8; G],
    x: &[*const u8; T],
    ahead: usize,
    dot: &mut Halves<S::Dot, G, T>,
) {
    let mut codes = [[s.splat_i(0); 2]; G];
    for g in 0..G {
        // SAFETY: the caller's contract.
        codes[g] = unsafe { C::pair::<S, J>(s, w[g]) };
        if T == 1 {
            s.prefetch(w[g].wrapping_add(ahead + J * C::BYTES / 4 * S::LANES));
        }
    }
    for h in 0..2 {
        let to = if SPLIT { h } else { 0 };
        for t in 0..T {
            // SAFETY: the codes of an activation block are its first 32 bytes.
            let x = unsafe { s.broadcast_i(x[t].add(16 * h + 4 * J)) };
            for g in 0..G {
                dot[to][g][t] = s.dot(dot[to][g][t], codes[g][h], x);
            }
        }
    }
}

/// Each pointer moved by `by` bytes.
///
/// # Safety
/// The results must stay inside what the pointers may reach.
#[inline(always)]
unsafe fn moved<const N: usize>(mut p: [*const u8; N], by: usize) -> [*const u8; N] {
    for p in &mut p {
        // SAFETY: the caller's contract.
        *p = unsafe { p.add(by) };
    }
    p
}

/// Writes `f(code)` for the 32 codes of each row, in order.
///
/// # Safety
/// `w` as for [`Codes::dword`].
#[inline(always)]
unsafe fn each_code<S: Isa, C: Codes>(s: S, w: *const u8, out: &mut [S::F; BLOCK], f: impl Fn(S::I) -> S::F) {
    // SAFETY: the caller's contract.
    let pairs = unsafe {
        [C::pair::<S, 0>(s, w), C::pair::<S, 1>(s, w), C::pair::<S, 2>(s, w), C::pair::<S, 3>(s, w)]
    };
    let byte = s.splat_i(0xff);
    for j in 0..8 {
        let dword = pairs[j % 4][j / 4];
        out[4 * j] = f(s.and_i(dword, byte));
        out[4 * j + 1] = f(s.and_i(s.shr::<8>(dword), byte));
        out[4 * j + 2] = f(s.and_i(s.shr::<16>(dword), byte));
        out[4 * j + 3] = f(s.shr::<24>(dword));
    }
}

impl<C: Codes, const OFFSET: i32> Format for Symmetric<C, OFFSET> {
    const SUBS: usize = 1;
    const SUMS: usize = 1;

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        let offset = twice(s, -OFFSET);
        let mut dot = [[[s.dot_zero(); T]; G]; 2];
        // SAFETY: fields of a packed block and of an activation block: d, then the codes; the third pair is the whole's.
        unsafe {
            for t in 0..T {
                let start = s.dot_shifted(s.broadcast_i(x[t].add(ActBlock::PAIRS + 8)), offset);
                for dot in &mut dot[0] {
                    dot[t] = start;
                }
            }
            dots::<S, C, false, G, T>(s, &moved(w, 2 * S::LANES), &x, ahead, &mut dot);
            for g in 0..G {
                let d = s.load_f16(w[g].cast());
                for t in 0..T {
                    let scale = s.mul(d, splat_at(s, x[t], ActBlock::SCALE));
                    acc[g][t] = s.fma(s.cvt(s.dot_sum(dot[0][g][t])), scale, acc[g][t]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, w: *const u8, _sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: d, then the codes.
        unsafe {
            let d = s.load_f16(w.cast());
            let offset = s.splat_i(OFFSET);
            each_code::<S, C>(s, w.add(2 * S::LANES), out, |code| s.mul(d, s.cvt(s.sub_i(code, offset))));
        }
    }
}

impl<C: Codes, const SPLIT: bool> Format for Affine<C, SPLIT> {
    const SUBS: usize = 1;
    const SUMS: usize = if SPLIT { 2 } else { 1 };

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        // SAFETY: fields of a packed block and of an activation block: d, m, then the codes.
        unsafe {
            let mut dot = [[[s.dot_zero(); T]; G]; 2];
            dots::<S, C, SPLIT, G, T>(s, &moved(w, 4 * S::LANES), &x, ahead, &mut dot);
            for g in 0..G {
                let (d, m) = (s.load_f16(w[g].cast()), s.load_f16(w[g].add(2 * S::LANES).cast()));
                for t in 0..T {
                    let mut sum = s.dot_sum(dot[0][g][t]);
                    if SPLIT {
                        sum = s.add_i(sum, s.dot_sum(dot[1][g][t]));
                    }
                    let scale = s.mul(d, splat_at(s, x[t], ActBlock::SCALE));
                    acc[g][t] = s.fma(s.cvt(sum), scale, acc[g][t]);
                    acc[g][t] = s.fma(m, splat_at(s, x[t], ActBlock::SUM), acc[g][t]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, w: *const u8, _sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: d, m, then the codes.
        unsafe {
            let (d, m) = (s.load_f16(w.cast()), s.load_f16(w.add(2 * S::LANES).cast()));
            each_code::<S, C>(s, w.add(4 * S::LANES), out, |code| s.add(s.mul(d, s.cvt(code)), m));
        }
    }
}

impl Format for Bytes {
    const SUBS: usize = 1;
    const SUMS: usize = 1;

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        let mut sum = [[s.splat_i(0); T]; G];
        // SAFETY: fields of a packed block and of an activation block: d, then 8 dwords of codes.
        unsafe {
            for t in 0..T {
                let start = s.dot_i8_start(s.broadcast_i(x[t].add(ActBlock::PAIRS + 8)));
                for sum in &mut sum {
                    sum[t] = start;
                }
            }
            for j in 0..8 {
                let mut codes = [s.bytes(s.splat_i(0)); G];
                for g in 0..G {
                    let dword = w[g].add((2 + 4 * j) * S::LANES);
                    codes[g] = s.bytes(s.load_i(dword));
                    if T == 1 {
                        s.prefetch(dword.wrapping_add(ahead));
                    }
                }
                for t in 0..T {
                    let x = s.broadcast_i(x[t].add(4 * j));
                    for g in 0..G {
                        sum[g][t] = s.dot_i8(sum[g][t], codes[g], x);
                    }
                }
            }
            for g in 0..G {
                let d = s.load_f16(w[g].cast());
                for t in 0..T {
                    let scale = s.mul(d, splat_at(s, x[t], ActBlock::SCALE));
                    acc[g][t] = s.fma(s.cvt(sum[g][t]), scale, acc[g][t]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, w: *const u8, _sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: d, then 8 dwords of codes.
        unsafe {
            let d = s.load_f16(w.cast());
            for j in 0..8 {
                let codes = s.load_i(w.add((2 + 4 * j) * S::LANES));
                out[4 * j] = s.mul(d, s.cvt(s.sra::<24>(s.shl::<24>(codes))));
                out[4 * j + 1] = s.mul(d, s.cvt(s.sra::<24>(s.shl::<16>(codes))));
                out[4 * j + 2] = s.mul(d, s.cvt(s.sra::<24>(s.shl::<8>(codes))));
                out[4 * j + 3] = s.mul(d, s.cvt(s.sra::<24>(codes)));
            }
        }
    }
}

impl<C: Codes, const SPLIT: bool> SuperAffine<C, SPLIT> {
    /// Offset of the sub-blocks' scales, in bytes per row; then d and dmin lie before, the minima and codes after.
    const SCALES: usize = 4;
    const MINS: usize = 12;
    const CODES: usize = 20;
}

impl<C: Codes, const SPLIT: bool> Format for SuperAffine<C, SPLIT> {
    const SUBS: usize = 8;
    const SUMS: usize = if SPLIT { 2 } else { 1 };

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
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
    unsafe fn weights<S: Isa>(s: S, w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
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

impl<C: Codes> SuperSymmetric<C> {
    /// Offset of the sub-blocks' scales, in bytes per row; d lies before, the codes after.
    const SCALES: usize = 2;
    const CODES: usize = 18;
}

impl<C: Codes> Format for SuperSymmetric<C> {
    const SUBS: usize = 8;
    const SUMS: usize = 2;

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        let offset = twice(s, -32);
        let mut a = [[s.splat(0.0); T]; G];
        // SAFETY: fields of a packed block, and 8 activation blocks; the pairs of each half start its sum.
        unsafe {
            for sub in 0..8 {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (Self::CODES + sub * C::BYTES) * S::LANES);
                let mut dot = [[[s.dot_zero(); T]; G]; 2];
                for h in 0..2 {
                    for t in 0..T {
                        let start = s.dot_shifted(s.broadcast_i(x[t].add(ActBlock::PAIRS + 4 * h)), offset);
                        for dot in &mut dot[h] {
                            dot[t] = start;
                        }
                    }
                }
                dots::<S, C, true, G, T>(s, &codes, &x, ahead, &mut dot);
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
    unsafe fn weights<S: Isa>(s: S, w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: fields of a packed block.
        unsafe {
            let d = s.load_f16(w.cast());
            let codes = w.add((Self::CODES + sub * C::BYTES) * S::LANES);
            let offset = s.splat_i(32);
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
