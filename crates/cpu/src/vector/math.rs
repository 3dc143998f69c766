//! Elementary functions of f32 vectors, the same bits on every instruction set.
//!
//! The polynomials are minimax fits of this project (reweighted least squares at 40 digits, then rounded to f32); the
//! error given beside each is that of the fit before rounding.

use crate::isa::Isa;

/// Below this, `exp` is under the smallest normal f32.
const EXP_LOWEST: f32 = -87.336_54;
/// Above this, `exp` is beyond the largest f32.
const EXP_HIGHEST: f32 = 88.722_83;
/// ln 2 in two parts, the first with zeros enough at its end that small multiples of it are exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// A polynomial with its coefficients from the constant up, by Horner's rule.
#[inline(always)]
fn horner<S: Isa, const N: usize>(s: S, x: S::F, coefficients: [f32; N]) -> S::F {
    let mut sum = s.splat(coefficients[N - 1]);
    for i in (0..N - 1).rev() {
        sum = s.fma(sum, x, s.splat(coefficients[i]));
    }
    sum
}

/// e^x within 2 ulp. Results below the smallest normal f32 are zero.
#[inline(always)]
pub(crate) fn exp<S: Isa>(s: S, x: S::F) -> S::F {
    let n = s.round_i(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let whole = s.cvt(n);
    let r = s.fnma(whole, s.splat(LN2_HIGH), x);
    let r = s.fnma(whole, s.splat(LN2_LOW), r);
    // (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, 3.3e-9 of e^r.
    let q = horner(s, r, [0.499_999_94, 0.166_665_15, 0.041_668_456, 0.008_369_42, 0.001_381_313_3]);
    let p = s.add(s.fma(s.mul(r, r), q, r), s.splat(1.0));
    // p is at least 0.7, and below 1 where n is 128, so that n goes straight into the exponent.
    let y = s.from_bits(s.add_i(s.bits(p), s.shl::<23>(n)));
    let y = s.select_lt(x, s.splat(EXP_LOWEST), s.splat(0.0), y);
    s.select_lt(s.splat(EXP_HIGHEST), x, s.splat(f32::INFINITY), y)
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(crate) fn sigmoid<S: Isa>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// x / (1 + e^-x)
#[inline(always)]
pub(crate) fn silu<S: Isa>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), x))))
}

/// tanh x, relative error below 4e-7.
#[inline(always)]
pub(crate) fn tanh<S: Isa>(s: S, x: S::F) -> S::F {
    const SPLIT: f32 = 0.6;
    let size = s.abs(x);
    let square = s.mul(x, x);
    // (tanh x / x - 1) / x^2 up to SPLIT, 2.8e-9.
    let q = horner(s, square, [-0.333_333, 0.133_319_24, -0.053_783_815, 0.020_795_93, -0.005_895_111_7]);
    let small = s.fma(s.mul(x, square), q, x);
    let one = s.splat(1.0);
    let large = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(size, size)), one)));
    let sign = s.and_i(s.bits(x), s.splat_i(i32::MIN));
    let large = s.from_bits(s.or_i(s.bits(large), sign));
    s.select_lt(size, s.splat(SPLIT), small, large)
}

/// The tanh form of GELU, 0.5 x (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3), computed as x / (1 + e^-2u).
#[inline(always)]
pub(crate) fn gelu_tanh<S: Isa>(s: S, x: S::F) -> S::F {
    const A: f64 = 2.0 * 0.797_884_560_802_865_4;
    const B: f64 = A * 0.044_715;
    let slope = s.fma(s.mul(x, x), s.splat(-B as f32), s.splat(-A as f32));
    s.div(x, s.add(s.splat(1.0), exp(s, s.mul(x, slope))))
}

/// The exact GELU, x times the normal distribution function.
#[inline(always)]
pub(crate) fn gelu_erf<S: Isa>(s: S, x: S::F) -> S::F {
    let (one, half) = (s.splat(1.0), s.splat(0.5));
    let size = s.abs(x);
    // The lower tail is e^(-x^2/2) g(|x|), with g a polynomial in t = 1 / (1 + 0.3 |x|), 3.4e-9.
    let t = s.div(one, s.fma(size, s.splat(0.3), one));
    let g = horner(
        s,
        t,
        [
            0.119_686_455,
            0.119_576_15,
            0.110_201_36,
            0.078_540_236,
            0.095_743_13,
            -0.078_689_28,
            0.190_940_95,
            -0.227_607_2,
            0.112_187_66,
            -0.020_579_444,
        ],
    );
    let g = s.mul(g, t);
    // What rounding x^2 loses matters to the exponential of a large square.
    let square = s.mul(x, x);
    let lost = s.mul(s.fma(x, x, s.sub(s.splat(0.0), square)), half);
    let e = exp(s, s.mul(square, s.splat(-0.5)));
    let e = s.fnma(e, lost, e);
    let tail = s.mul(g, e);
    // Beyond LAST the tail vanishes; x is held there so that infinity is not multiplied by zero.
    const LAST: f32 = 14.0;
    let tail = s.select_lt(size, s.splat(LAST), tail, s.splat(0.0));
    let below = s.mul(x, tail);
    let above = s.fnma(s.min(x, s.splat(LAST)), tail, x);
    s.select_lt(x, s.splat(0.0), below, above)
}
