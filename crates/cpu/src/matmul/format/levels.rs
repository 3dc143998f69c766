//! Blocks whose codes stand for signed bytes: themselves, or levels out of a code book.

use super::{Format, Halves, Scale, each_code, fetch, moved, shifted_dots, splat_at, twice};
use crate::isa::Isa;
use crate::matmul::codes::Codes;
use crate::pack::books::book;
use crate::quant::{ActBlock, BLOCK};
use std::marker::PhantomData;
use tensor::DType;

/// Signed bytes of the weights of each row of a lane group, out of their packed fields.
pub(in crate::matmul) trait Levels {
    /// Bytes per row for 32 weights.
    const BYTES: usize;
    /// What is held in registers.
    type Book<S: Isa>: Copy;

    /// The book of a type.
    fn book<S: Isa>(s: S, dtype: DType) -> Self::Book<S>;

    /// The weights `4 J` to `4 J + 3` and `16 + 4 J` to `16 + 4 J + 3` of each row.
    ///
    /// # Safety
    /// `p` must point at the codes of 32 weights: [`Levels::BYTES`] times [`Isa::LANES`] readable bytes.
    unsafe fn pair<S: Isa, const J: usize>(s: S, book: Self::Book<S>, p: *const u8) -> [S::I; 2];
}

/// The codes themselves: 8 dwords.
pub(in crate::matmul) struct Eight;
/// Codes that index a book of 16.
pub(in crate::matmul) struct Coded<C>(PhantomData<C>);

impl Levels for Eight {
    const BYTES: usize = 32;
    type Book<S: Isa> = ();

    #[inline(always)]
    fn book<S: Isa>(_: S, _: DType) {}

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, (): (), p: *const u8) -> [S::I; 2] {
        // SAFETY: dwords `J` and `J + 4` of the 8 at `p`.
        unsafe { [s.load_i(p.add(4 * J * S::LANES)), s.load_i(p.add((16 + 4 * J) * S::LANES))] }
    }
}

impl<C: Codes> Levels for Coded<C> {
    const BYTES: usize = C::BYTES;
    type Book<S: Isa> = S::Table;

    #[inline(always)]
    fn book<S: Isa>(s: S, dtype: DType) -> S::Table {
        s.table(book(dtype))
    }

    #[inline(always)]
    unsafe fn pair<S: Isa, const J: usize>(s: S, book: S::Table, p: *const u8) -> [S::I; 2] {
        // SAFETY: the caller's contract.
        let codes = unsafe { C::pair::<S, J>(s, p) };
        [s.lookup(book, codes[0]), s.lookup(book, codes[1])]
    }
}

/// The integer products of 32 weights. With `SPLIT` each 16 have a sum of their own, else all are in the first.
///
/// # Safety
/// `w` as for [`Levels::pair`]; each `x` must point at an [`ActBlock`].
#[inline(always)]
unsafe fn sums<S: Isa, L: Levels, const SPLIT: bool, const G: usize, const T: usize>(
    s: S,
    book: L::Book<S>,
    w: &[*const u8; G],
    x: &[*const u8; T],
    ahead: usize,
) -> Halves<S::I, G, T> {
    let mut sum = [[[s.splat_i(0); T]; G]; 2];
    // SAFETY: the caller's contract.
    unsafe {
        for h in 0..if SPLIT { 2 } else { 1 } {
            for t in 0..T {
                let pairs = ActBlock::PAIRS + if SPLIT { 4 * h } else { 8 };
                let start = s.dot_i8_start(s.broadcast_i(x[t].add(pairs)));
                for sum in &mut sum[h] {
                    sum[t] = start;
                }
            }
        }
        step::<S, L, SPLIT, 0, G, T>(s, book, w, x, ahead, &mut sum);
        step::<S, L, SPLIT, 1, G, T>(s, book, w, x, ahead, &mut sum);
        step::<S, L, SPLIT, 2, G, T>(s, book, w, x, ahead, &mut sum);
        step::<S, L, SPLIT, 3, G, T>(s, book, w, x, ahead, &mut sum);
    }
    sum
}

/// Adds the products of 4 weights of each half.
///
/// # Safety
/// As [`sums`].
#[inline(always)]
unsafe fn step<S: Isa, L: Levels, const SPLIT: bool, const J: usize, const G: usize, const T: usize>(
    s: S,
    book: L::Book<S>,
    w: &[*const u8; G],
    x: &[*const u8; T],
    ahead: usize,
    sum: &mut Halves<S::I, G, T>,
) {
    let mut codes = [[s.bytes(s.splat_i(0)); 2]; G];
    for g in 0..G {
        // SAFETY: the caller's contract.
        let pair = unsafe { L::pair::<S, J>(s, book, w[g]) };
        codes[g] = [s.bytes(pair[0]), s.bytes(pair[1])];
        fetch::<S, J>(s, w[g].wrapping_add(ahead), L::BYTES);
    }
    for h in 0..2 {
        let to = if SPLIT { h } else { 0 };
        for t in 0..T {
            // SAFETY: the codes of an activation block are its first 32 bytes.
            let x = unsafe { s.broadcast_i(x[t].add(16 * h + 4 * J)) };
            for g in 0..G {
                sum[to][g][t] = s.dot_i8(sum[to][g][t], codes[g][h], x);
            }
        }
    }
}

/// Writes the 32 signed bytes of each row as f32, in order.
///
/// # Safety
/// `w` as for [`Levels::pair`].
#[inline(always)]
unsafe fn each_level<S: Isa, L: Levels>(s: S, book: L::Book<S>, w: *const u8, out: &mut [S::F; BLOCK]) {
    // SAFETY: the caller's contract.
    let pairs = unsafe {
        [
            L::pair::<S, 0>(s, book, w),
            L::pair::<S, 1>(s, book, w),
            L::pair::<S, 2>(s, book, w),
            L::pair::<S, 3>(s, book, w),
        ]
    };
    for j in 0..8 {
        let dword = pairs[j % 4][j / 4];
        out[4 * j] = s.cvt(s.sra::<24>(s.shl::<24>(dword)));
        out[4 * j + 1] = s.cvt(s.sra::<24>(s.shl::<16>(dword)));
        out[4 * j + 2] = s.cvt(s.sra::<24>(s.shl::<8>(dword)));
        out[4 * j + 3] = s.cvt(s.sra::<24>(dword));
    }
}

/// `d * level` with one scale for `SUBS` times 32 weights: Q8_0, Q8_1, Q8_K, IQ4_NL.
pub(in crate::matmul) struct Signed<D, L, const SUBS: usize>(PhantomData<(D, L)>);

impl<D: Scale, L: Levels, const SUBS: usize> Format for Signed<D, L, SUBS> {
    const SUBS: usize = SUBS;
    const HEADER: usize = D::BYTES;
    const RARE: bool = SUBS > 1;
    type Book<S: Isa> = L::Book<S>;

    #[inline(always)]
    fn book<S: Isa>(s: S, dtype: DType) -> L::Book<S> {
        L::book(s, dtype)
    }

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        book: L::Book<S>,
        w: [*const u8; G],
        x: [*const u8; T],
        ahead: usize,
        acc: &mut [[S::F; T]; G],
    ) {
        // SAFETY: fields of a packed block and of activation blocks: d, then the codes.
        unsafe {
            for sub in 0..SUBS {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (D::BYTES + sub * L::BYTES) * S::LANES);
                let sum = sums::<S, L, false, G, T>(s, book, &codes, &x, ahead);
                for g in 0..G {
                    let d = D::load(s, w[g]);
                    for t in 0..T {
                        let scale = s.mul(d, splat_at(s, x[t], ActBlock::SCALE));
                        acc[g][t] = s.fma(s.cvt(sum[0][g][t]), scale, acc[g][t]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, book: L::Book<S>, w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: d, then the codes.
        unsafe {
            let d = D::load(s, w);
            each_level::<S, L>(s, book, w.add((D::BYTES + sub * L::BYTES) * S::LANES), out);
            for out in out {
                *out = s.mul(d, *out);
            }
        }
    }
}

/// `(d * scale) * level` with signed scales of 32 weights, or with `HALVES` of 16: IQ4_XS and IQ3, or IQ1 and IQ2.
pub(in crate::matmul) struct SuperSigned<L, const HALVES: bool>(PhantomData<L>);

impl<L: Levels, const HALVES: bool> SuperSigned<L, HALVES> {
    /// Offset of the sub-blocks' scales, in bytes per row; d lies before, the codes after.
    const SCALES: usize = 2;
    const CODES: usize = if HALVES { 18 } else { 10 };

    /// What d is multiplied with: the power of two of the type.
    #[inline(always)]
    fn power<S: Isa>(s: S, dtype: DType) -> S::F {
        s.splat(match dtype {
            DType::IQ4_XS | DType::IQ3_S => 1.0,
            DType::IQ3_XXS => 0.25,
            DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => 0.125,
            other => unreachable!("{other} has another format"),
        })
    }

    /// The scale of half `h` of sub-block `sub`.
    ///
    /// # Safety
    /// `w` must point at a packed block.
    #[inline(always)]
    unsafe fn scale<S: Isa>(s: S, w: *const u8, sub: usize, h: usize) -> S::F {
        let at = if HALVES { 2 * sub + h } else { sub };
        // SAFETY: the caller's contract.
        s.cvt(unsafe { s.load_i8(w.add((Self::SCALES + at) * S::LANES)) })
    }
}

impl<L: Levels, const HALVES: bool> Format for SuperSigned<L, HALVES> {
    const SUBS: usize = 8;
    const HEADER: usize = Self::CODES;
    const RARE: bool = HALVES;
    type Book<S: Isa> = (L::Book<S>, S::F);

    #[inline(always)]
    fn book<S: Isa>(s: S, dtype: DType) -> (L::Book<S>, S::F) {
        (L::book(s, dtype), Self::power(s, dtype))
    }

    #[inline(always)]
    unsafe fn block<S: Isa, const G: usize, const T: usize>(
        s: S,
        (book, power): (L::Book<S>, S::F),
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
                let codes = moved(w, (Self::CODES + sub * L::BYTES) * S::LANES);
                let sum = sums::<S, L, HALVES, G, T>(s, book, &codes, &x, ahead);
                for g in 0..G {
                    let scales = [Self::scale(s, w[g], sub, 0), Self::scale(s, w[g], sub, 1)];
                    for t in 0..T {
                        // Integers below 2^24 all the way: 32 * 127 * 127 times a scale of 32 at most.
                        let mut all = s.mul(s.cvt(sum[0][g][t]), scales[0]);
                        if HALVES {
                            all = s.fma(s.cvt(sum[1][g][t]), scales[1], all);
                        }
                        a[g][t] = s.fma(all, splat_at(s, x[t], ActBlock::SCALE), a[g][t]);
                    }
                }
            }
            for g in 0..G {
                let d = s.mul(s.load_f16(w[g].cast()), power);
                for t in 0..T {
                    acc[g][t] = s.fma(d, a[g][t], acc[g][t]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(
        s: S,
        (book, power): (L::Book<S>, S::F),
        w: *const u8,
        sub: usize,
        out: &mut [S::F; BLOCK],
    ) {
        // SAFETY: fields of a packed block.
        unsafe {
            let d = s.mul(s.load_f16(w.cast()), power);
            each_level::<S, L>(s, book, w.add((Self::CODES + sub * L::BYTES) * S::LANES), out);
            for h in 0..2 {
                let step = s.mul(d, Self::scale(s, w, sub, h));
                for out in &mut out[16 * h..][..16] {
                    *out = s.mul(step, *out);
                }
            }
        }
    }
}

/// `d * (code - OFFSET)` in sub-blocks of 16 whose scales are E4M3 bytes, two activation blocks in a block: NVFP4.
pub(in crate::matmul) struct E4m3Halves<C, const OFFSET: i32>(PhantomData<C>);

impl<C: Codes, const OFFSET: i32> E4m3Halves<C, OFFSET> {
    /// Offset of the codes, in bytes per row; the scales lie before.
    const CODES: usize = 4;

    /// The scale of half `h` of sub-block `sub`: the exponent of an f32 has another bias, and half the scale is meant.
    ///
    /// # Safety
    /// `w` must point at a packed block.
    #[inline(always)]
    unsafe fn scale<S: Isa>(s: S, w: *const u8, sub: usize, h: usize) -> S::F {
        // SAFETY: the caller's contract.
        let byte = unsafe { s.load_u8(w.add((2 * sub + h) * S::LANES)) };
        s.mul(s.from_bits(s.shl::<20>(byte)), s.splat(f32::from_bits((127 + 127 - 7 - 1) << 23)))
    }
}

impl<C: Codes, const OFFSET: i32> Format for E4m3Halves<C, OFFSET> {
    const SUBS: usize = 2;
    const HEADER: usize = Self::CODES;
    const RARE: bool = true;
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
        // SAFETY: fields of a packed block, and 2 activation blocks.
        unsafe {
            for sub in 0..2 {
                let x = moved(x, sub * size_of::<ActBlock>());
                let codes = moved(w, (Self::CODES + sub * C::BYTES) * S::LANES);
                let dot = shifted_dots::<S, C, true, G, T>(s, offset, &codes, &x, ahead);
                for g in 0..G {
                    for h in 0..2 {
                        let d = Self::scale(s, w[g], sub, h);
                        for t in 0..T {
                            let scale = s.mul(d, splat_at(s, x[t], ActBlock::SCALE));
                            acc[g][t] = s.fma(s.cvt(s.dot_sum(dot[h][g][t])), scale, acc[g][t]);
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Isa>(s: S, (): (), w: *const u8, sub: usize, out: &mut [S::F; BLOCK]) {
        // SAFETY: fields of a packed block.
        unsafe {
            let codes = w.add((Self::CODES + sub * C::BYTES) * S::LANES);
            let offset = s.splat_i(OFFSET);
            each_code::<S, C>(s, codes, out, |code| s.cvt(s.sub_i(code, offset)));
            for h in 0..2 {
                let d = Self::scale(s, w, sub, h);
                for out in &mut out[16 * h..][..16] {
                    *out = s.mul(d, *out);
                }
            }
        }
    }
}
