//! Instruction sets: one trait of vector operations, a token per instruction set, chosen once at start.
//!
//! A kernel is written once as a [`Kernel`], generic over an [`Isa`]. An `Isa` value is a token that can be made only
//! where the CPU has the features, so its arithmetic methods are safe; only those that touch memory are not.
//! [`CpuIsa::run`] enters a kernel through one `#[target_feature]` function per instruction set; everything between
//! that function and the intrinsics is `#[inline(always)]`, so the whole kernel compiles with the features on. A
//! closure or helper inside a kernel that is *not* `#[inline(always)]` compiles without them and is very slow. Conversely
//! everything a kernel can reach becomes one function: dispatch on formats and shapes *outside* a kernel and enter a small
//! one for each, or the compiler takes minutes.
//!
//! **Same bits everywhere.** Every f32 operation here is a correctly rounded IEEE operation on each lane (`fma` is
//! fused on every instruction set), so a kernel whose result does not depend on [`Isa::LANES`] gives the same bits on
//! all of them. Sums across lanes must therefore be written for a fixed number of virtual lanes ([`VIRTUAL_LANES`]).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

/// [`Isa::pair_sums`] with the instructions of AVX2.
///
/// # Safety
/// The CPU must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pair_sums_avx2(codes: &[i8; 32]) -> [[i16; 2]; 2] {
    use std::arch::x86_64::*;
    // SAFETY: the caller's contract; 32 bytes are read.
    unsafe {
        let codes = _mm256_loadu_si256(codes.as_ptr().cast());
        // Each lane of 32 bits is a pair of sums; each half of the register a half of the codes.
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
        let pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32::<0b01_00_11_10>(pairs));
        let pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32::<0b10_11_00_01>(pairs));
        let halves = [_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs)];
        halves.map(
            #[inline(always)]
            |half| {
                let pair = _mm_cvtsi128_si32(half);
                [pair as i16, (pair >> 16) as i16]
            },
        )
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use scalar::Scalar;

use std::fmt;
use std::str::FromStr;

/// The lanes over which reductions are written, so that they do not depend on the instruction set: a multiple of
/// every [`Isa::LANES`].
pub const VIRTUAL_LANES: usize = 16;

/// A computation that is generic over the instruction set. Implement `run` as `#[inline(always)]`.
pub trait Kernel {
    /// What the computation returns.
    type Out;
    /// Runs with the operations of one instruction set.
    fn run<S: Isa>(self, isa: S) -> Self::Out;
}

/// The vector operations of one instruction set.
///
/// `F` holds [`Isa::LANES`] f32 and `I` as many 32-bit integers; where bytes are multiplied, each 32-bit lane of an `I`
/// is four bytes in memory order.
pub trait Isa: Copy + Send + Sync + 'static {
    /// f32 lanes of a vector: 8 or 16.
    const LANES: usize;
    /// Vectors that the registers hold, which bound what a kernel keeps in flight; 0 where vectors are arrays.
    const REGISTERS: usize;
    /// The field's name, as in `avx2`.
    const NAME: &'static str;
    /// A vector of f32.
    type F: Copy;
    /// A vector of 32-bit integers, or of four bytes a lane.
    type I: Copy;
    /// A running sum of byte products for each lane, exact as long as the bounds of [`Isa::dot`] are kept.
    type Dot: Copy;
    /// A small integer per lane in the form that [`Isa::dot_scaled`] multiplies by.
    type Scale: Copy;
    /// Four signed bytes a lane, prepared for [`Isa::dot_i8`].
    type Bytes: Copy;
    /// Sixteen bytes to look up.
    type Table: Copy;

    /// Runs a kernel with this instruction set's features enabled.
    fn enter<K: Kernel>(self, kernel: K) -> K::Out;

    // f32 lanes

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Loads [`Isa::LANES`] f32.
    ///
    /// # Safety
    /// `p` must be readable for that many f32; any alignment.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Stores [`Isa::LANES`] f32.
    ///
    /// # Safety
    /// `p` must be writable for that many f32; any alignment.
    unsafe fn store(self, p: *mut f32, v: Self::F);
    /// Loads [`Isa::LANES`] binary16 and widens them exactly.
    ///
    /// # Safety
    /// `p` must be readable for that many u16; any alignment.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Rounds to binary16 (nearest even) and stores [`Isa::LANES`] of them.
    ///
    /// # Safety
    /// `p` must be writable for that many u16; any alignment.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);
    /// Loads [`Isa::LANES`] bfloat16 and widens them exactly.
    ///
    /// # Safety
    /// `p` must be readable for that many u16; any alignment.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`: where either is NaN, `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`: where either is NaN, `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The square root.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// The absolute value (clears the sign bit).
    fn abs(self, a: Self::F) -> Self::F;
    /// `a < b ? x : y` per lane; false where either is NaN.
    fn select_lt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// The nearest integer, ties to even; `i32::MIN` where it does not fit or is NaN.
    fn round_i(self, a: Self::F) -> Self::I;
    /// The nearest f32 of each integer.
    fn cvt(self, a: Self::I) -> Self::F;
    /// The bits of each f32.
    fn bits(self, a: Self::F) -> Self::I;
    /// The f32 of each bit pattern.
    #[allow(clippy::wrong_self_convention, reason = "the token is not what is converted")]
    fn from_bits(self, a: Self::I) -> Self::F;

    // 32-bit integer lanes (wrapping)

    /// All lanes `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// Loads [`Isa::LANES`] 32-bit lanes.
    ///
    /// # Safety
    /// `p` must be readable for `4 * LANES` bytes; any alignment.
    unsafe fn load_i(self, p: *const u8) -> Self::I;
    /// Stores [`Isa::LANES`] 32-bit lanes.
    ///
    /// # Safety
    /// `p` must be writable for `4 * LANES` bytes; any alignment.
    unsafe fn store_i(self, p: *mut u8, v: Self::I);
    /// Loads [`Isa::LANES`] unsigned bytes, one a lane.
    ///
    /// # Safety
    /// `p` must be readable for that many bytes.
    unsafe fn load_u8(self, p: *const u8) -> Self::I;
    /// Loads [`Isa::LANES`] signed bytes, one a lane.
    ///
    /// # Safety
    /// `p` must be readable for that many bytes.
    unsafe fn load_i8(self, p: *const u8) -> Self::I;
    /// One 32-bit value in all lanes.
    ///
    /// # Safety
    /// `p` must be readable for 4 bytes; any alignment.
    unsafe fn broadcast_i(self, p: *const u8) -> Self::I;
    /// `a + b`
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// The larger, as signed integers.
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a & b`
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a | b`
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << N`
    fn shl<const N: u32>(self, a: Self::I) -> Self::I;
    /// `a >> N`, shifting in zeros.
    fn shr<const N: u32>(self, a: Self::I) -> Self::I;
    /// `a >> N`, shifting in the sign.
    fn sra<const N: u32>(self, a: Self::I) -> Self::I;

    // Dots of bytes. AVX2 sums the products of bytes 0, 1 and of bytes 2, 3 of a lane in 16 bits each; hence the bounds.

    /// An empty sum.
    fn dot_zero(self) -> Self::Dot;
    /// A sum that starts at `offset * (p.0 + p.1)`, where each lane of `pairs` is two i16 `p.0, p.1` and each lane of
    /// `offset` the same i16 twice. `p.0` must be the sum of all the bytes 0 and 1, and `p.1` of all the bytes 2 and 3,
    /// of the activations that will be added: then the sum is that of codes shifted by `offset`, and the bounds of
    /// [`Isa::dot`] are those of the *shifted* codes.
    fn dot_shifted(self, pairs: Self::I, offset: Self::I) -> Self::Dot;
    /// Adds the products of the unsigned bytes of `w` (at most 127) and the signed bytes of `x` (-127 to 127). At the
    /// end the sum over bytes 0 and 1, and the sum over bytes 2 and 3, must each fit an i16; in between they may wrap.
    fn dot(self, acc: Self::Dot, w: Self::I, x: Self::I) -> Self::Dot;
    /// The finished sum of each lane.
    fn dot_sum(self, acc: Self::Dot) -> Self::I;
    /// The sum of each lane times its scale.
    fn dot_scaled(self, acc: Self::Dot, scale: Self::Scale) -> Self::I;
    /// Scales from integers in -32768 to 32767.
    fn scale(self, a: Self::I) -> Self::Scale;

    /// A table for [`Isa::lookup`].
    fn table(self, entries: &[i8; 16]) -> Self::Table;
    /// For each byte of `codes`, all of which must be below 16, the entry of the table.
    fn lookup(self, table: Self::Table, codes: Self::I) -> Self::I;

    /// Prepares signed bytes (any value) for [`Isa::dot_i8`].
    fn bytes(self, w: Self::I) -> Self::Bytes;
    /// Where the sum of [`Isa::dot_i8`] starts; `pairs` as in [`Isa::dot_shifted`].
    fn dot_i8_start(self, pairs: Self::I) -> Self::I;
    /// Adds the products of signed bytes (`x` from -127 to 127). After the last one the sum is exact.
    fn dot_i8(self, acc: Self::I, w: Self::Bytes, x: Self::I) -> Self::I;

    // Whole blocks of codes

    /// The largest lane, as signed integers.
    #[inline(always)]
    fn largest_i(self, a: Self::I) -> i32 {
        let mut lanes = [i32::MIN; VIRTUAL_LANES];
        // SAFETY: `lanes` has room for the widest vector.
        unsafe { self.store_i(lanes.as_mut_ptr().cast(), a) };
        lanes.into_iter().fold(i32::MIN, i32::max)
    }
    /// Stores the lowest byte of each lane.
    ///
    /// # Safety
    /// `p` must be writable for [`Isa::LANES`] bytes.
    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8, a: Self::I) {
        let mut lanes = [0i32; VIRTUAL_LANES];
        // SAFETY: `lanes` has room for the widest vector; the caller's contract.
        unsafe {
            self.store_i(lanes.as_mut_ptr().cast(), a);
            for (i, lane) in lanes[..Self::LANES].iter().enumerate() {
                p.add(i).write(*lane as u8);
            }
        }
    }
    /// For each half of the codes, the sum of those at positions 0 and 1 modulo 4, and that of those at 2 and 3.
    #[inline(always)]
    fn pair_sums(self, codes: &[i8; 32]) -> [[i16; 2]; 2] {
        let mut sums = [[0i16; 2]; 2];
        for (half, sums) in codes.as_chunks::<16>().0.iter().zip(&mut sums) {
            let mut by_place = [0i16; 4];
            for codes in half.as_chunks::<4>().0 {
                for (sum, code) in by_place.iter_mut().zip(codes) {
                    *sum += i16::from(*code);
                }
            }
            *sums = [by_place[0] + by_place[1], by_place[2] + by_place[3]];
        }
        sums
    }

    /// Asks for a cache line that will be read soon. Any address is allowed.
    fn prefetch(self, p: *const u8);

    /// As [`Isa::prefetch`], into the second cache alone: for what is read later.
    fn prefetch_l2(self, p: *const u8);

    /// Loads the first `n` f32; the other lanes are zero.
    ///
    /// # Safety
    /// `p` must be readable for `n` f32, and `n` at most [`Isa::LANES`].
    #[inline(always)]
    unsafe fn load_partial(self, p: *const f32, n: usize) -> Self::F {
        let mut a = [0f32; VIRTUAL_LANES];
        // SAFETY: the caller vouches for `n` f32 at `p`; `n <= LANES <= VIRTUAL_LANES`.
        unsafe {
            std::ptr::copy_nonoverlapping(p, a.as_mut_ptr(), n);
            self.load(a.as_ptr())
        }
    }

    /// Stores the first `n` f32.
    ///
    /// # Safety
    /// `p` must be writable for `n` f32, and `n` at most [`Isa::LANES`].
    #[inline(always)]
    unsafe fn store_partial(self, p: *mut f32, v: Self::F, n: usize) {
        let mut a = [0f32; VIRTUAL_LANES];
        // SAFETY: the caller vouches for `n` f32 at `p`; `n <= LANES <= VIRTUAL_LANES`.
        unsafe {
            self.store(a.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(a.as_ptr(), p, n);
        }
    }
}

/// The instruction set that kernels run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuIsa {
    /// Portable code; the same bits as the others, slowly.
    Scalar(Scalar),
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, VL, DQ and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon<false>),
    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod(Neon<true>),
}

impl CpuIsa {
    /// The best instruction set of this CPU.
    pub fn detect() -> CpuIsa {
        *Self::available().last().expect("the portable code runs everywhere")
    }

    /// Every instruction set that this CPU can run, worst first.
    pub fn available() -> Vec<CpuIsa> {
        let mut all = vec![CpuIsa::Scalar(Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::detect().map(CpuIsa::Avx2));
            all.extend(Avx512::detect().map(CpuIsa::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.extend(Neon::detect().map(CpuIsa::Neon));
            all.extend(Neon::detect().map(CpuIsa::NeonDotprod));
        }
        all
    }

    /// Runs a kernel.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            CpuIsa::Scalar(isa) => isa.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            CpuIsa::Avx2(isa) => isa.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            CpuIsa::Avx512(isa) => isa.enter(kernel),
            #[cfg(target_arch = "aarch64")]
            CpuIsa::Neon(isa) => isa.enter(kernel),
            #[cfg(target_arch = "aarch64")]
            CpuIsa::NeonDotprod(isa) => isa.enter(kernel),
        }
    }

    /// f32 lanes of a vector; also the weight rows that one packed group interleaves.
    pub const fn lanes(self) -> usize {
        match self {
            CpuIsa::Scalar(_) => Scalar::LANES,
            #[cfg(target_arch = "x86_64")]
            CpuIsa::Avx2(_) => Avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            CpuIsa::Avx512(_) => Avx512::LANES,
            #[cfg(target_arch = "aarch64")]
            CpuIsa::Neon(_) => Neon::<false>::LANES,
            #[cfg(target_arch = "aarch64")]
            CpuIsa::NeonDotprod(_) => Neon::<true>::LANES,
        }
    }

    /// The name that [`CpuIsa::from_str`] takes.
    pub const fn name(self) -> &'static str {
        match self {
            CpuIsa::Scalar(_) => Scalar::NAME,
            #[cfg(target_arch = "x86_64")]
            CpuIsa::Avx2(_) => Avx2::NAME,
            #[cfg(target_arch = "x86_64")]
            CpuIsa::Avx512(_) => Avx512::NAME,
            #[cfg(target_arch = "aarch64")]
            CpuIsa::Neon(_) => Neon::<false>::NAME,
            #[cfg(target_arch = "aarch64")]
            CpuIsa::NeonDotprod(_) => Neon::<true>::NAME,
        }
    }
}

impl fmt::Display for CpuIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An instruction set was asked for that this CPU cannot run.
#[derive(Debug, thiserror::Error)]
#[error("this CPU cannot run instruction set `{asked}`; it can run: {available}")]
pub struct UnknownIsa {
    /// The name that was asked for.
    pub asked: String,
    /// The names this CPU can run.
    pub available: String,
}

impl FromStr for CpuIsa {
    type Err = UnknownIsa;

    /// The instruction set of that name, if this CPU can run it.
    fn from_str(name: &str) -> Result<CpuIsa, UnknownIsa> {
        let all = Self::available();
        all.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa {
            asked: name.to_string(),
            available: all.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests;
