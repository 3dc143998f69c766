//! What the products need to know of each quantised format: the integer product of a packed block, and its decoding.
//!
//! The order of the f32 operations below is the definition of the `fast` product; it is the same for any number of
//! tokens, of lanes and of threads. `S` are exact integers, `xs` and `xsum` the scale and scaled sum of an activation
//! block, every `fma` rounds once:
//!
//! - a scale for all weights of an activation block (Q4_0, Q5_0, Q8_0, Q8_1, Q8_K, Q1_0, TQ, IQ4_NL, MXFP4), per 32:
//!   `acc = fma(S, d * xs, acc)`
//! - affine (Q4_1, Q5_1), per 32: `acc = fma(S, d * xs, acc)`, then `acc = fma(m, xsum, acc)`
//! - NVFP4, per 16: `acc = fma(S, d * xs, acc)`
//! - Q4_K, Q5_K, per 256: from zero, over the 8 sub-blocks, `a = fma(scale * S, xs, a)` and `b = fma(min, xsum, b)`; then
//!   `acc = fma(d, a, acc)`, `acc = fma(-dmin, b, acc)`
//! - Q2_K the same, with integers `scale0 * S0 + scale1 * S1` and `min0 * X0 + min1 * X1`, where `X` are sums of activation
//!   codes, and `b = fma(min0 * X0 + min1 * X1, xs, b)`
//! - Q3_K, Q6_K, IQ1, IQ2, IQ3, IQ4_XS, per 256: from zero, over the 8 activation blocks, `a = fma(scale0 * S0 + scale1 *
//!   S1, xs, a)`; then `acc = fma(d, a, acc)`, where `d` has the format's power of two in it

mod levels;
mod supers;

use super::codes::Codes;
use crate::isa::Isa;
use crate::quant::{ActBlock, BLOCK};
use std::marker::PhantomData;
use tensor::DType;

pub(super) use levels::{Coded, E4m3Halves, Eight, Signed, SuperSigned};
pub(super) use supers::{SuperAffine, SuperHalves, SuperSymmetric};

/// A quantised format in the packed layout.
pub(super) trait Format {
    /// Activation blocks of 32 in a packed block.
    const SUBS: usize;
    /// Bytes per row of a packed block before the first codes.
    const HEADER: usize;
    /// Whether few shapes of tiles are compiled: for formats that few files have, because each shape takes the compiler
    /// half a second for every instruction set.
    const RARE: bool = false;
    /// What kernels of the format hold in registers: code books.
    type Book<S: Isa>: Copy;

    /// The book of one of the types that share the format.
    fn book<S: Isa>(s: S, dtype: DType) -> Self::Book<S>;

    /// Adds a packed block of `G` lane groups times the activations of `T` tokens. For one token, which is bound by
    /// memory, the weights `ahead` bytes further are prefetched.
    ///
    /// # Safety
    /// Each `w` must point at a packed block of the format for [`Isa::LANES`] rows, each `x` at [`Format::SUBS`]
    /// [`ActBlock`]s.
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        book: Self::Book<S>,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    );

    /// Decodes weights `32 sub` to `32 sub + 31` of each row, in order.
    ///
    /// # Safety
    /// `w` must point at a packed block of the format for [`Isa::LANES`] rows; `sub` must be below [`Format::SUBS`].
    unsafe fn weights<S: Isa>(s: S, book: Self::Book<S>, w: *const u8, sub: usize, out: &mut [S::F; BLOCK]);
}

/// The scale of a block.
pub(super) trait Scale {
    /// Bytes per row.
    const BYTES: usize;

    /// The scale of each row.
    ///
    /// # Safety
    /// `p` must be readable for [`Isa::LANES`] scales.
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F;
}

/// binary16.
pub(super) struct Half;
/// binary32.
pub(super) struct Single;
/// A byte `e` for 2 to the power `e - 128`.
pub(super) struct Exponent;

impl Scale for Half {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_f16(p.cast()) }
    }
}

impl Scale for Single {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(p.cast()) }
    }
}

impl Scale for Exponent {
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        let e = unsafe { s.load_u8(p) };
        // As a product of two powers that are normal numbers: the smallest results are not.
        let first = s.shr::<1>(e);
        let second = s.sub_i(e, first);
        let power = |e: S::I| s.from_bits(s.shl::<23>(s.add_i(e, s.splat_i(127 - 64))));
        s.mul(power(first), power(second))
    }
}

/// `d * (code - OFFSET)` with one scale for `SUBS` times 32 weights: Q4_0, Q5_0, Q1_0, TQ, MXFP4. No shifted code may
/// be larger than 16, so that 32 products fit the 16-bit sums of [`Isa::dot`].
pub(super) struct Symmetric<D, C, const OFFSET: i32, const SUBS: usize>(PhantomData<(D, C)>);
/// `d * code + m`: Q4_1, and with `SPLIT` Q5_1, whose 32 products do not fit the 16-bit sums of [`Isa::dot`] at once.
pub(super) struct Affine<C, const SPLIT: bool>(PhantomData<C>);

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

/// The products of 32 weights whose codes are moved by `offset`, an i16 [`twice`]; `SPLIT` as for [`dots`]. The pairs of
/// each half start its sum, or the third pair that of all.
///
/// # Safety
/// As [`dots`].
#[inline(always)]
unsafe fn shifted_dots<S: Isa, C: Codes, const SPLIT: bool, const G: usize, const T: usize>(
    s: S,
    offset: S::I,
    w: &[*const u8; G],
    x: &[*const u8; T],
    ahead: usize,
) -> Halves<S::Dot, G, T> {
    let mut dot = [[[s.dot_zero(); T]; G]; 2];
    // SAFETY: the caller's contract.
    unsafe {
        for h in 0..if SPLIT { 2 } else { 1 } {
            for t in 0..T {
                let pairs = ActBlock::PAIRS + if SPLIT { 4 * h } else { 8 };
                let start = s.dot_shifted(s.broadcast_i(x[t].add(pairs)), offset);
                for dot in &mut dot[h] {
                    dot[t] = start;
                }
            }
        }
        dots::<S, C, SPLIT, G, T>(s, w, x, ahead, &mut dot);
    }
    dot
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
        fetch::<S, J>(s, w[g].wrapping_add(ahead), C::BYTES);
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

/// Prefetches quarter `J` of the cache lines of the codes of 32 weights, which take so many bytes of each row.
#[inline(always)]
fn fetch<S: Isa, const J: usize>(s: S, codes: *const u8, bytes: usize) {
    let lines = (bytes * S::LANES).div_ceil(64);
    for line in (J * lines).div_ceil(4)..((J + 1) * lines).div_ceil(4) {
        s.prefetch(codes.wrapping_add(64 * line));
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
/// `w` as for [`Codes::pair`].
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

impl<D: Scale, C: Codes, const OFFSET: i32, const SUBS: usize> Format for Symmetric<D, C, OFFSET, SUBS> {
    const SUBS: usize = SUBS;
    const HEADER: usize = D::BYTES;
    const RARE: bool = SUBS > 1;
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
        // SAFETY: fields of a packed block and of activation blocks: d, then the codes.
        unsafe {
            for sub in 0..SUBS {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (D::BYTES + sub * C::BYTES) * S::LANES);
                let dot = shifted_dots::<S, C, false, G, T>(s, offset, &codes, &x, ahead);
                for g in 0..G {
                    let d = D::load(s, w[g]);
                    for t in 0..T {
                        let scale = s.mul(d, splat_at(s, x[t], ActBlock::SCALE));
                        acc[g][t] = s.fma(s.cvt(s.dot_sum(dot[0][g][t])), scale, acc[g][t]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, (): (), w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: d, then the codes.
        unsafe {
            let d = D::load(s, w);
            let offset = s.splat_i(OFFSET);
            let codes = w.add((D::BYTES + sub * C::BYTES) * S::LANES);
            each_code::<S, C>(s, codes, out, |code| s.mul(d, s.cvt(s.sub_i(code, offset))));
        }
    }
}

impl<C: Codes, const SPLIT: bool> Format for Affine<C, SPLIT> {
    const SUBS: usize = 1;
    const HEADER: usize = 4;
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
    unsafe fn weights<S: Isa>(s: S, (): (), w: *const u8, _sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: d, m, then the codes.
        unsafe {
            let (d, m) = (s.load_f16(w.cast()), s.load_f16(w.add(2 * S::LANES).cast()));
            each_code::<S, C>(s, w.add(4 * S::LANES), out, |code| s.add(s.mul(d, s.cvt(code)), m));
        }
    }
}
