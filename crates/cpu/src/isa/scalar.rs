//! Portable code: eight lanes in arrays. It defines what the other instruction sets must compute.

use super::{Isa, Kernel};
use half::{bf16, f16};

/// The token of the portable code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar;

const L: usize = 8;

#[inline(always)]
fn map<A: Copy, B: Copy, T>(a: [A; L], b: [B; L], f: impl Fn(A, B) -> T) -> [T; L] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn products(w: i32, x: i32, widen: impl Fn(u8) -> i32) -> i32 {
    let (w, x) = (w.to_le_bytes(), x.to_le_bytes());
    (0..4).map(|i| widen(w[i]) * i32::from(x[i] as i8)).sum()
}

/// Reads `L` values of `T`.
///
/// # Safety
/// `p` must be readable for that many; any alignment.
#[inline(always)]
unsafe fn read<T: Copy>(p: *const T) -> [T; L] {
    // SAFETY: the caller vouches for `L` values at `p`.
    unsafe { p.cast::<[T; L]>().read_unaligned() }
}

impl Isa for Scalar {
    const LANES: usize = L;
    const REGISTERS: usize = 0;
    const NAME: &'static str = "scalar";
    type F = [f32; L];
    type I = [i32; L];
    type Dot = [i32; L];
    type Scale = [i32; L];
    type Bytes = [i32; L];
    type Table = [i8; 16];

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; L]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { read(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[f32; L]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { read(p) }.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: Self::F) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[u16; L]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller's contract.
        unsafe { read(p) }.map(|b| bf16::from_bits(b).to_f32())
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn round_i(self, a: Self::F) -> Self::I {
        a.map(|x| {
            let r = x.round_ties_even();
            if (-2147483648.0..2147483648.0).contains(&r) { r as i32 } else { i32::MIN }
        })
    }
    #[inline(always)]
    fn cvt(self, a: Self::I) -> Self::F {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::I {
        a.map(|x| x.to_bits() as i32)
    }
    #[inline(always)]
    fn from_bits(self, a: Self::I) -> Self::F {
        a.map(|x| f32::from_bits(x as u32))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> Self::I {
        [x; L]
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { read(p.cast::<i32>()) }
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: Self::I) {
        // SAFETY: the caller's contract.
        unsafe { p.cast::<[i32; L]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { read(p) }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        unsafe { read(p.cast::<i8>()) }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn broadcast_i(self, p: *const u8) -> Self::I {
        // SAFETY: the caller's contract.
        [unsafe { p.cast::<i32>().read_unaligned() }; L]
    }
    #[inline(always)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, i32::max)
    }
    #[inline(always)]
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I {
        map(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        a.map(|x| x << N)
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::I) -> Self::I {
        a.map(|x| ((x as u32) >> N) as i32)
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: Self::I) -> Self::I {
        a.map(|x| x >> N)
    }

    #[inline(always)]
    fn dot_zero(self) -> Self::Dot {
        [0; L]
    }
    #[inline(always)]
    fn dot_shifted(self, pairs: Self::I, offset: Self::I) -> Self::Dot {
        map(pairs, offset, |p, o| i32::from(o as i16) * (i32::from(p as i16) + (p >> 16)))
    }
    #[inline(always)]
    fn dot(self, acc: Self::Dot, w: Self::I, x: Self::I) -> Self::Dot {
        std::array::from_fn(|i| acc[i] + products(w[i], x[i], i32::from))
    }
    #[inline(always)]
    fn dot_sum(self, acc: Self::Dot) -> Self::I {
        acc
    }
    #[inline(always)]
    fn dot_scaled(self, acc: Self::Dot, scale: Self::Scale) -> Self::I {
        map(acc, scale, i32::wrapping_mul)
    }
    #[inline(always)]
    fn scale(self, a: Self::I) -> Self::Scale {
        a
    }
    #[inline(always)]
    fn table(self, entries: &[i8; 16]) -> Self::Table {
        *entries
    }
    #[inline(always)]
    fn lookup(self, table: Self::Table, codes: Self::I) -> Self::I {
        codes.map(|four| {
            i32::from_le_bytes(four.to_le_bytes().map(|code| table[usize::from(code & 15)] as u8))
        })
    }
    #[inline(always)]
    fn bytes(self, w: Self::I) -> Self::Bytes {
        w
    }
    #[inline(always)]
    fn dot_i8_start(self, _pairs: Self::I) -> Self::I {
        [0; L]
    }
    #[inline(always)]
    fn dot_i8(self, acc: Self::I, w: Self::Bytes, x: Self::I) -> Self::I {
        std::array::from_fn(|i| acc[i] + products(w[i], x[i], |b| i32::from(b as i8)))
    }
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
    #[inline(always)]
    fn prefetch_l2(self, _p: *const u8) {}
}
