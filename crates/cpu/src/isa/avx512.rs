//! AVX-512 with VNNI: sixteen lanes.

use super::{Isa, Kernel};
use std::arch::x86_64::*;

/// The token of AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if this CPU has the features.
    pub fn detect() -> Option<Avx512> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Avx512(()))
    }
}

/// Runs a kernel with the features on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn enter<K: Kernel>(isa: Avx512, kernel: K) -> K::Out {
    kernel.run(isa)
}

/// Intrinsics without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx512` token exists, so the CPU has the features these intrinsics need.
        unsafe { $e }
    };
}

/// Intrinsics that read or write what the caller vouched for.
macro_rules! mem {
    ($e:expr) => {
        // SAFETY: the token proves the features; the caller's contract covers the memory.
        unsafe { $e }
    };
}

impl Isa for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const NAME: &'static str = "avx512";
    type F = __m512;
    type I = __m512i;
    type Dot = __m512i;
    type Scale = __m512i;
    type Bytes = __m512i;
    type Table = __m512i;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        op!(enter(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        mem!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        mem!(_mm512_storeu_ps(p, v))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        mem!(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        mem!(_mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        mem!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            p.cast()
        )))))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        op!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        op!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn round_i(self, a: __m512) -> __m512i {
        op!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn cvt(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        op!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn from_bits(self, a: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(a))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        op!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> __m512i {
        mem!(_mm512_loadu_si512(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: __m512i) {
        mem!(_mm512_storeu_si512(p.cast(), v))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512i {
        mem!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> __m512i {
        mem!(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn broadcast_i(self, p: *const u8) -> __m512i {
        mem!(_mm512_set1_epi32(p.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn max_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: __m512i) -> __m512i {
        op!(_mm512_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: __m512i) -> __m512i {
        op!(_mm512_srli_epi32::<N>(a))
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: __m512i) -> __m512i {
        op!(_mm512_srai_epi32::<N>(a))
    }

    #[inline(always)]
    fn dot_zero(self) -> __m512i {
        op!(_mm512_setzero_si512())
    }
    #[inline(always)]
    fn dot_shifted(self, pairs: __m512i, offset: __m512i) -> __m512i {
        op!(_mm512_madd_epi16(pairs, offset))
    }
    #[inline(always)]
    fn dot(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, w, x))
    }
    #[inline(always)]
    fn dot_sum(self, acc: __m512i) -> __m512i {
        acc
    }
    #[inline(always)]
    fn dot_scaled(self, acc: __m512i, scale: __m512i) -> __m512i {
        op!(_mm512_mullo_epi32(acc, scale))
    }
    #[inline(always)]
    fn scale(self, a: __m512i) -> __m512i {
        a
    }
    #[inline(always)]
    fn table(self, entries: &[i8; 16]) -> __m512i {
        mem!(_mm512_broadcast_i32x4(_mm_loadu_si128(entries.as_ptr().cast())))
    }
    #[inline(always)]
    fn lookup(self, table: __m512i, codes: __m512i) -> __m512i {
        op!(_mm512_shuffle_epi8(table, codes))
    }
    #[inline(always)]
    fn bytes(self, w: __m512i) -> __m512i {
        // vpdpbusd takes unsigned weights: shift them by 128 here and start the sum at -128 times that of `x`.
        op!(_mm512_xor_si512(w, _mm512_set1_epi8(-128)))
    }
    #[inline(always)]
    fn dot_i8_start(self, pairs: __m512i) -> __m512i {
        op!(_mm512_madd_epi16(pairs, _mm512_set1_epi16(-128)))
    }
    #[inline(always)]
    fn dot_i8(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, w, x))
    }
    #[inline(always)]
    fn largest_i(self, a: __m512i) -> i32 {
        op!(_mm512_reduce_max_epi32(a))
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8, a: __m512i) {
        mem!(_mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(a)))
    }
    #[inline(always)]
    fn pair_sums(self, codes: &[i8; 32]) -> [[i16; 2]; 2] {
        op!(super::pair_sums_avx2(codes))
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
    #[inline(always)]
    fn prefetch_l2(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T1>(p.cast()))
    }
}
