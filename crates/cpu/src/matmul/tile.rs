//! The sums of a few lane groups times a few tokens over the whole inner dimension.

use super::format::Format;
use super::{DecodeBlock, subs};
use crate::isa::Isa;
use crate::quant::{ActBlock, BLOCK};
use std::marker::PhantomData;
use std::ops::Range;
use tensor::DType;

/// Where the weights lie that are fetched while others are multiplied, in bytes after those.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// Every line of them.
    pub(super) lines: usize,
    /// The first line of each page, with one token: the processor's own prefetcher follows a stream within a page of 4 KiB, and
    /// begins each with a miss. On Zen 5 one thread decodes a 1.5B of Q8_0 6 % faster (25.1 tokens a second instead of 23.7), of
    /// Q4_0 1 %; formats with blocks of 256 weights do not gain. 0 for none.
    pub(super) pages: usize,
}

/// A way to compute a product from packed weights and activations.
pub(super) trait Tile {
    /// Whether few shapes of tiles are compiled, see [`Format::RARE`].
    const RARE: bool = false;
    /// Whether one token takes one lane group at a time, because one chain of sums keeps up with memory. Plain weights
    /// wait for their sums: F16 43 GiB/s with one chain, 60 with two.
    const ONE_STREAM: bool = false;

    /// The sums of `G` lane groups times `T` tokens. Each sum is independent of `G` and `T`.
    ///
    /// # Safety
    /// Each `w` must point at `k` weights of [`Isa::LANES`] packed rows, each `x` at `k` activations of the tile's form;
    /// `k` must fill whole blocks of the format, and `dtype` be one of its types.
    #[allow(clippy::too_many_arguments, reason = "a product is all of these")]
    unsafe fn sums<S: Isa, const G: usize, const T: usize>(
        s: S,
        dtype: DType,
        w: [*const u8; G],
        x: [*const u8; T],
        k: usize,
        block_bytes: usize,
        ahead: Ahead,
    ) -> [[S::F; T]; G];
}

/// 8-bit activations ([`ActBlock`]) and integer products.
pub(super) struct Fast<F>(PhantomData<F>);
/// f32 activations and decoded weights: `acc = fma(w, x, acc)` in the order of the inner dimension.
pub(super) struct Exact;
/// f32 activations and plain weights, in the same order as [`Exact`].
pub(super) struct Plain<P>(PhantomData<P>);

/// A plain element type.
pub(super) trait Element {
    /// Bytes of an element.
    const BYTES: usize;
    /// One element of each row, as f32.
    ///
    /// # Safety
    /// `p` must be readable for [`Isa::LANES`] elements.
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F;
}

/// binary32.
pub(super) struct F32;
/// binary16.
pub(super) struct F16;
/// bfloat16.
pub(super) struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load(p.cast()) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_f16(p.cast()) }
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { s.load_bf16(p.cast()) }
    }
}

impl<F: Format> Tile for Fast<F> {
    const RARE: bool = F::RARE;
    const ONE_STREAM: bool = true;

    #[inline(always)]
    unsafe fn sums<S: Isa, const G: usize, const T: usize>(
        s: S,
        dtype: DType,
        mut w: [*const u8; G],
        mut x: [*const u8; T],
        k: usize,
        block_bytes: usize,
        ahead: Ahead,
    ) -> [[S::F; T]; G] {
        let book = F::book(s, dtype);
        let mut acc = [[s.splat(0.0); T]; G];
        for _ in 0..k / (F::SUBS * BLOCK) {
            if const { F::SUBS == 1 && T == 1 } && ahead.pages > 0 {
                for g in 0..G {
                    fetch_page(s, w[g].wrapping_add(ahead.pages), block_bytes);
                }
            }
            // What lies before the codes, which prefetch themselves. Medians of 40 on a machine with other work: Q4_1 with k = 576
            // 25 GB/s with it and 19 without, Q4_K with k = 1536 24 and 23.
            for at in (0..F::HEADER * S::LANES).step_by(64) {
                for g in 0..G {
                    s.prefetch(w[g].wrapping_add(ahead.lines + at));
                }
            }
            // SAFETY: the caller vouches for `k` weights and activations; each round passes one block of them.
            unsafe { F::block::<S, G, T>(s, book, w, x, ahead.lines, &mut acc) };
            for w in &mut w {
                *w = w.wrapping_add(block_bytes);
            }
            for x in &mut x {
                *x = x.wrapping_add(F::SUBS * size_of::<ActBlock>());
            }
        }
        acc
    }
}

/// Fetches the first line of the page of `p`, if it begins less than `bytes` before: once, where `p` goes on by so many.
#[inline(always)]
fn fetch_page<S: Isa>(s: S, p: *const u8, bytes: usize) {
    const PAGE: usize = 4096;
    let into = p.addr() % PAGE;
    if into < bytes {
        s.prefetch_l2(p.wrapping_sub(into));
    }
}

impl Tile for Exact {
    #[inline(always)]
    unsafe fn sums<S: Isa, const G: usize, const T: usize>(
        s: S,
        dtype: DType,
        w: [*const u8; G],
        x: [*const u8; T],
        k: usize,
        block_bytes: usize,
        _ahead: Ahead,
    ) -> [[S::F; T]; G] {
        let mut acc = [[s.splat(0.0); T]; G];
        let mut weights = [[s.splat(0.0); BLOCK]; G];
        for at in (0..k).step_by(BLOCK) {
            let (block, sub) = (at / BLOCK / subs(dtype), at / BLOCK % subs(dtype));
            for g in 0..G {
                // SAFETY: the caller vouches for the packed blocks of `k` weights, which is what a `DecodeBlock` needs.
                let w = unsafe { w[g].add(block * block_bytes) };
                s.enter(DecodeBlock { dtype, w, sub, out: weights[g].as_mut_ptr() });
            }
            for i in 0..BLOCK {
                for t in 0..T {
                    // SAFETY: the caller vouches for `k` activations.
                    let x = s.splat(unsafe { x[t].cast::<f32>().add(at + i).read() });
                    for g in 0..G {
                        acc[g][t] = s.fma(weights[g][i], x, acc[g][t]);
                    }
                }
            }
        }
        acc
    }
}

impl<P: Element> Tile for Plain<P> {
    #[inline(always)]
    unsafe fn sums<S: Isa, const G: usize, const T: usize>(
        s: S,
        _dtype: DType,
        w: [*const u8; G],
        x: [*const u8; T],
        k: usize,
        _block_bytes: usize,
        ahead: Ahead,
    ) -> [[S::F; T]; G] {
        let ahead = ahead.lines;
        let mut acc = [[s.splat(0.0); T]; G];
        let bytes = P::BYTES * S::LANES;
        // SAFETY: the caller vouches for `k` weights and activations.
        unsafe {
            if T == 1 {
                // One token is bound by memory, and reads close behind what it fetches: 0.87 of the bus with 4 KiB, where 2
                // and 8 give 0.79, a whole tile 0.83, and four streams of 2 KiB 0.84. At its end come the next lane groups.
                let near = (4096 / bytes).min(k);
                lines::<S, P, G, T>(s, w, x, 0..k - near, near * bytes, &mut acc);
                let next = ahead.wrapping_sub((k - near) * bytes);
                lines::<S, P, G, T>(s, w, x, k - near..k, next, &mut acc);
            } else {
                lines::<S, P, G, T>(s, w, x, 0..k, ahead, &mut acc);
            }
        }
        acc
    }
}

/// Adds the products of some elements, and prefetches what lies `ahead` bytes after each line of their weights, or before it
/// where that wraps.
///
/// # Safety
/// There must be such elements of each row of weights and of activations.
#[inline(always)]
unsafe fn lines<S: Isa, P: Element, const G: usize, const T: usize>(
    s: S,
    w: [*const u8; G],
    x: [*const u8; T],
    elements: Range<usize>,
    ahead: usize,
    acc: &mut [[S::F; T]; G],
) {
    // Elements of each row in a cache line: as an inner loop of fixed length, or the compiler keeps the sums in memory.
    let in_line = const { 64 / (P::BYTES * S::LANES) };
    let mut at = elements.start;
    while at + in_line <= elements.end {
        for g in 0..G {
            s.prefetch(w[g].wrapping_add(at * P::BYTES * S::LANES).wrapping_add(ahead));
        }
        for i in 0..in_line {
            // SAFETY: the caller's contract.
            unsafe { multiply::<S, P, G, T>(s, w, x, at + i, acc) };
        }
        at += in_line;
    }
    while at < elements.end {
        // SAFETY: the caller's contract.
        unsafe { multiply::<S, P, G, T>(s, w, x, at, acc) };
        at += 1;
    }
}

/// Adds the products of element `at`.
///
/// # Safety
/// There must be such an element of each row of weights and of activations.
#[inline(always)]
unsafe fn multiply<S: Isa, P: Element, const G: usize, const T: usize>(
    s: S,
    w: [*const u8; G],
    x: [*const u8; T],
    at: usize,
    acc: &mut [[S::F; T]; G],
) {
    let mut weights = [s.splat(0.0); G];
    for g in 0..G {
        // SAFETY: the caller's contract.
        weights[g] = unsafe { P::load(s, w[g].add(at * P::BYTES * S::LANES)) };
    }
    for t in 0..T {
        // SAFETY: the caller's contract.
        let x = s.splat(unsafe { x[t].cast::<f32>().add(at).read() });
        for g in 0..G {
            acc[g][t] = s.fma(weights[g], x, acc[g][t]);
        }
    }
}
