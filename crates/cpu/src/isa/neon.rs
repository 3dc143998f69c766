//! NEON: eight lanes in two registers.

use super::{Isa, Kernel};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// The token of NEON, and with `DOTPROD` of its dot products of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon<const DOTPROD: bool>(());

impl<const DOTPROD: bool> Neon<DOTPROD> {
    /// The token, if this CPU has the features.
    pub fn detect() -> Option<Self> {
        let has =
            is_aarch64_feature_detected!("neon") && (!DOTPROD || is_aarch64_feature_detected!("dotprod"));
        has.then_some(Neon(()))
    }
}

/// Runs a kernel with the feature on.
#[target_feature(enable = "neon")]
fn enter<S: Isa, K: Kernel>(isa: S, kernel: K) -> K::Out {
    kernel.run(isa)
}

/// Runs a kernel with the features on.
#[target_feature(enable = "neon,dotprod")]
fn enter_dotprod<S: Isa, K: Kernel>(isa: S, kernel: K) -> K::Out {
    kernel.run(isa)
}

/// Eight lanes of f32.
type F = [float32x4_t; 2];
/// Eight lanes of 32-bit integers.
type I = [int32x4_t; 2];

/// Intrinsics without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: a `Neon` token exists, so the CPU has the feature these intrinsics need.
        unsafe { $e }
    };
}

/// An intrinsic on each half of its operands.
macro_rules! halves {
    ($f:ident($($arg:ident),*)) => {
        op!([$f($($arg[0]),*), $f($($arg[1]),*)])
    };
}

/// Intrinsics that read or write what the caller vouched for.
macro_rules! mem {
    ($e:expr) => {
        // SAFETY: the token proves the feature; the caller's contract covers the memory.
        unsafe { $e }
    };
}

impl<const DOTPROD: bool> Neon<DOTPROD> {
    /// Adds the products of the four signed bytes of each lane. Those of bytes 0 and 1, and those of bytes 2 and 3, must
    /// add up to an i16: as none of `x` is -128, they do.
    #[inline(always)]
    fn products(self, mut acc: int32x4_t, w: int32x4_t, x: int32x4_t) -> int32x4_t {
        if DOTPROD {
            // SAFETY: a `Neon<true>` token exists, so the CPU has the instruction, which touches registers alone. The
            // intrinsic for it is not stable.
            unsafe {
                asm!(
                    "sdot {acc:v}.4s, {w:v}.16b, {x:v}.16b",
                    acc = inout(vreg) acc,
                    w = in(vreg) w,
                    x = in(vreg) x,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            acc
        } else {
            op!({
                let (w, x) = (vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
                let pairs = vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
                vpadalq_s16(acc, pairs)
            })
        }
    }
}

impl<const DOTPROD: bool> Isa for Neon<DOTPROD> {
    const LANES: usize = 8;
    // Of the 32, a vector takes two.
    const REGISTERS: usize = 16;
    const NAME: &'static str = if DOTPROD { "neon-dotprod" } else { "neon" };
    type F = F;
    type I = I;
    type Dot = I;
    type Scale = I;
    type Bytes = I;
    type Table = int8x16_t;

    #[inline(always)]
    fn enter<K: Kernel>(self, kernel: K) -> K::Out {
        if DOTPROD { op!(enter_dotprod(self, kernel)) } else { op!(enter(self, kernel)) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [op!(vdupq_n_f32(x)); 2]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        mem!([vld1q_f32(p), vld1q_f32(p.add(4))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        mem!({
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        mem!({
            let h = vreinterpretq_f16_u16(vld1q_u16(p));
            [vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)]
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        // In the rounding mode that Rust code runs in: to nearest, ties to even.
        mem!(vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v[0]), v[1]))))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        let h = mem!(vld1q_u16(p));
        let wide = op!([vshll_n_u16::<16>(vget_low_u16(h)), vshll_high_n_u16::<16>(h)]);
        halves!(vreinterpretq_f32_u32(wide))
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        halves!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        halves!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        halves!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        halves!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        halves!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn fnma(self, a: F, b: F, c: F) -> F {
        halves!(vfmsq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        // `vmaxq_f32` is NaN where either is.
        let larger = halves!(vcgtq_f32(a, b));
        halves!(vbslq_f32(larger, a, b))
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        self.select_lt(a, b, a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        halves!(vsqrtq_f32(a))
    }
    #[inline(always)]
    fn abs(self, a: F) -> F {
        halves!(vabsq_f32(a))
    }
    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        let less = halves!(vcltq_f32(a, b));
        halves!(vbslq_f32(less, x, y))
    }
    #[inline(always)]
    fn round_i(self, a: F) -> I {
        // The conversion saturates, which is right below; what is too large or NaN is not less than 2^31.
        let (whole, beyond) = (halves!(vcvtnq_s32_f32(a)), self.splat(2147483648.0));
        let (fits, least) = (halves!(vcltq_f32(a, beyond)), self.splat_i(i32::MIN));
        halves!(vbslq_s32(fits, whole, least))
    }
    #[inline(always)]
    fn cvt(self, a: I) -> F {
        halves!(vcvtq_f32_s32(a))
    }
    #[inline(always)]
    fn bits(self, a: F) -> I {
        halves!(vreinterpretq_s32_f32(a))
    }
    #[inline(always)]
    fn from_bits(self, a: I) -> F {
        halves!(vreinterpretq_f32_s32(a))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        [op!(vdupq_n_s32(x)); 2]
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> I {
        mem!([vld1q_s32(p.cast()), vld1q_s32(p.add(16).cast())])
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: I) {
        mem!({
            vst1q_s32(p.cast(), v[0]);
            vst1q_s32(p.add(16).cast(), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> I {
        mem!({
            let h = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
            [vmovl_s16(vget_low_s16(h)), vmovl_high_s16(h)]
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const u8) -> I {
        mem!({
            let h = vmovl_s8(vld1_s8(p.cast()));
            [vmovl_s16(vget_low_s16(h)), vmovl_high_s16(h)]
        })
    }
    #[inline(always)]
    unsafe fn broadcast_i(self, p: *const u8) -> I {
        [mem!(vld1q_dup_s32(p.cast())); 2]
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        halves!(vaddq_s32(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        halves!(vsubq_s32(a, b))
    }
    #[inline(always)]
    fn max_i(self, a: I, b: I) -> I {
        halves!(vmaxq_s32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: I, b: I) -> I {
        halves!(vandq_s32(a, b))
    }
    #[inline(always)]
    fn or_i(self, a: I, b: I) -> I {
        halves!(vorrq_s32(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: I) -> I {
        let by = self.splat_i(N as i32);
        halves!(vshlq_s32(a, by))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: I) -> I {
        let (a, by) = (halves!(vreinterpretq_u32_s32(a)), self.splat_i(-(N as i32)));
        let a = halves!(vshlq_u32(a, by));
        halves!(vreinterpretq_s32_u32(a))
    }
    #[inline(always)]
    fn sra<const N: u32>(self, a: I) -> I {
        let by = self.splat_i(-(N as i32));
        halves!(vshlq_s32(a, by))
    }

    #[inline(always)]
    fn dot_zero(self) -> I {
        self.splat_i(0)
    }
    #[inline(always)]
    fn dot_shifted(self, pairs: I, offset: I) -> I {
        let (pairs, offset) = (halves!(vreinterpretq_s16_s32(pairs)), self.sra::<16>(offset));
        let sums = halves!(vpaddlq_s16(pairs));
        halves!(vmulq_s32(sums, offset))
    }
    #[inline(always)]
    fn dot(self, acc: I, w: I, x: I) -> I {
        // Codes are at most 127, hence signed bytes as well.
        self.dot_i8(acc, w, x)
    }
    #[inline(always)]
    fn dot_sum(self, acc: I) -> I {
        acc
    }
    #[inline(always)]
    fn dot_scaled(self, acc: I, scale: I) -> I {
        halves!(vmulq_s32(acc, scale))
    }
    #[inline(always)]
    fn scale(self, a: I) -> I {
        a
    }
    #[inline(always)]
    fn table(self, entries: &[i8; 16]) -> int8x16_t {
        mem!(vld1q_s8(entries.as_ptr()))
    }
    #[inline(always)]
    fn lookup(self, table: int8x16_t, codes: I) -> I {
        let (codes, table) = (halves!(vreinterpretq_u8_s32(codes)), [table; 2]);
        let entries = halves!(vqtbl1q_s8(table, codes));
        halves!(vreinterpretq_s32_s8(entries))
    }
    #[inline(always)]
    fn bytes(self, w: I) -> I {
        w
    }
    #[inline(always)]
    fn dot_i8_start(self, _pairs: I) -> I {
        self.splat_i(0)
    }
    #[inline(always)]
    fn dot_i8(self, acc: I, w: I, x: I) -> I {
        [self.products(acc[0], w[0], x[0]), self.products(acc[1], w[1], x[1])]
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a hint, which any address is good for. The intrinsic for it is not stable.
        unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
    #[inline(always)]
    fn prefetch_l2(self, p: *const u8) {
        // SAFETY: as above.
        unsafe { asm!("prfm pldl2keep, [{p}]", p = in(reg) p, options(readonly, nostack, preserves_flags)) }
    }
}
