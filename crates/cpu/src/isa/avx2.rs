//! AVX2 with FMA and F16C: eight lanes.

use super::{Isa, Kernel};
use std::arch::x86_64::*;

/// The token of AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this CPU has the features.
    pub fn detect() -> Option<Avx2> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Avx2(()))
    }
}

/// Runs a kernel with the features on.
#[target_feature(enable = "avx2,fma,f16c")]
fn enter<K: Kernel>(isa: Avx2, kernel: K) -> K::Out {
    kernel.run(isa)
}

/// Intrinsics without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx2` token exists, so the CPU has the features these intrinsics need.
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

impl Isa for Avx2 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const NAME: &'static str = "avx2";
    type F = __m256;
    type I = __m256i;
    type Dot = __m256i;
    type Scale = __m256i;
    type Bytes = (__m256i, __m256i);
    type Table = __m256i;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        op!(enter(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        op!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        mem!(_mm256_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        mem!(_mm256_storeu_ps(p, v))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m256 {
        mem!(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m256) {
        mem!(_mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m256 {
        mem!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        op!(_mm256_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        op!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        op!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        op!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn select_lt(self, a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        op!(_mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn round_i(self, a: __m256) -> __m256i {
        op!(_mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn cvt(self, a: __m256i) -> __m256 {
        op!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: __m256) -> __m256i {
        op!(_mm256_castps_si256(a))
    }
    #[inline(always)]
    fn from_bits(self, a: __m256i) -> __m256 {
        op!(_mm256_castsi256_ps(a))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m256i {
        op!(_mm256_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> __m256i {
        mem!(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: __m256i) {
        mem!(_mm256_storeu_si256(p.cast(), v))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m256i {
        mem!(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> __m256i {
        mem!(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
    }
    #[inline(always)]
    unsafe fn broadcast_i(self, p: *const u8) -> __m256i {
        mem!(_mm256_set1_epi32(p.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    fn add_i(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn max_i(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_max_epi32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or_i(self, a: __m256i, b: __m256i) -> __m256i {
        op!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: __m256i) -> __m256i {
        op!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32)))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: __m256i) -> __m256i {
        op!(_mm256_srl_epi32(a, _mm_cvtsi32_si128(N as i32)))
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: __m256i) -> __m256i {
        op!(_mm256_sra_epi32(a, _mm_cvtsi32_si128(N as i32)))
    }

    #[inline(always)]
    fn dot_zero(self) -> __m256i {
        op!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn dot_shifted(self, pairs: __m256i, offset: __m256i) -> __m256i {
        op!(_mm256_mullo_epi16(pairs, offset))
    }
    #[inline(always)]
    fn dot(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        op!(_mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x)))
    }
    #[inline(always)]
    fn dot_sum(self, acc: __m256i) -> __m256i {
        op!(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)))
    }
    #[inline(always)]
    fn dot_scaled(self, acc: __m256i, scale: __m256i) -> __m256i {
        op!(_mm256_madd_epi16(acc, scale))
    }
    #[inline(always)]
    fn scale(self, a: __m256i) -> __m256i {
        op!(_mm256_blend_epi16::<0b1010_1010>(a, _mm256_slli_epi32::<16>(a)))
    }
    #[inline(always)]
    fn table(self, entries: &[i8; 16]) -> __m256i {
        mem!(_mm256_broadcastsi128_si256(_mm_loadu_si128(entries.as_ptr().cast())))
    }
    #[inline(always)]
    fn lookup(self, table: __m256i, codes: __m256i) -> __m256i {
        op!(_mm256_shuffle_epi8(table, codes))
    }
    #[inline(always)]
    fn bytes(self, w: __m256i) -> (__m256i, __m256i) {
        // The magnitude of -128 is 128 as an unsigned byte; two products with 127 still fit an i16.
        (w, op!(_mm256_abs_epi8(w)))
    }
    #[inline(always)]
    fn dot_i8_start(self, _pairs: __m256i) -> __m256i {
        op!(_mm256_setzero_si256())
    }
    #[inline(always)]
    fn dot_i8(self, acc: __m256i, (w, magnitude): (__m256i, __m256i), x: __m256i) -> __m256i {
        op!({
            let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn largest_i(self, a: __m256i) -> i32 {
        op!({
            let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        })
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8, a: __m256i) {
        mem!({
            let low = _mm256_and_si256(a, _mm256_set1_epi32(0xff));
            let words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
        })
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
