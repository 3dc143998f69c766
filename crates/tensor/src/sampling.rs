//! From logits to a token, in integers.
//!
//! A token's weight, e^((logit - max) / temperature), is a fixed-point number that integer operations alone compute, and
//! sums of integers are the same in any order. So the host and every device, whatever its arithmetic and however it
//! divides a row, draw the same token from the same logits: asking for log-probabilities, which keeps a request on the
//! host, does not change its text. [`crate::Op::Sample`] is defined by this arithmetic.

mod candidates;
mod rank;

pub use candidates::Candidates;
pub use rank::{Ranked, ordered, select};

/// The weight of the highest logit. A weight is rounded to a multiple of 2^-31 of it: a token below 2^-32 of the highest
/// is never drawn.
pub const ONE: u32 = 1 << 31;

/// Bits of the fraction of an exponent of two.
const FRACTION: u32 = 26;

/// How one row is drawn from. The default is argmax.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    /// The uniform number of the draw, in units of 2^-32.
    pub uniform: u32,
    /// [`sharpness`] of the temperature.
    pub sharpness: f32,
    /// Keep this many of the highest; 0 keeps all, 1 is argmax.
    pub top_k: u32,
    /// [`share`] of the nucleus.
    pub top_p: u32,
    /// [`least_weight`] of what is kept.
    pub min_p: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { uniform: 0, sharpness: 0.0, top_k: 1, top_p: 0, min_p: 0 }
    }
}

/// How a temperature above 0 is given: octaves of weight per unit of logit, `log2(e) / temperature`.
pub fn sharpness(temperature: f32) -> f32 {
    (std::f64::consts::LOG2_E / f64::from(temperature)) as f32
}

/// How a share in (0, 1] is given: in units of 2^-32, rounded up; the whole is 0, which keeps everything.
pub fn share(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0).ceil() as u64 as u32
}

/// How a share in [0, 1] of the highest weight is given: the least weight that reaches it.
pub fn least_weight(p: f32) -> u32 {
    (f64::from(p) * f64::from(ONE)).ceil() as u32
}

/// The weight of a logit where `max` is the highest, both finite: within 1e-6 of it and half a unit. Never falls with the
/// logit.
pub fn weight(logit: f32, max: f32, sharpness: f32) -> u32 {
    // Quarters, whose difference cannot overflow.
    let below = 0.25 * max - 0.25 * logit;
    let (a, b) = (below.to_bits() & 0x7fff_ffff, sharpness.to_bits() & 0x7fff_ffff);
    let exponents = (a >> 23, b >> 23);
    if exponents.0 == 0 || exponents.1 == 0 {
        return ONE; // 0, or so small that a device may take it for 0
    }
    let mantissa = |bits: u32| u64::from(bits & 0x007f_ffff | 0x0080_0000);
    let product = mantissa(a) * mantissa(b); // from 2^46 to 2^48
    // The exponent of two, with FRACTION bits behind the point.
    let shift = 298 - FRACTION as i32 - exponents.0 as i32 - exponents.1 as i32;
    let octaves = match shift {
        ..16 => return 0, // at least 32
        16..48 => (product >> shift) as u32,
        _ => return ONE,
    };
    let whole = octaves >> FRACTION;
    if whole >= 32 {
        return 0;
    }
    (exp2_of_minus(octaves << (32 - FRACTION)) + (1 << whole >> 1)) >> whole
}

/// 2^-f of a fraction in units of 2^-32, as a weight, relative error below 2^-26: `1 - f q(f)`, with q of degree 5 through
/// (1 - 2^-f) / f at stretched Chebyshev nodes that include 1, so that octaves meet.
fn exp2_of_minus(f: u32) -> u32 {
    const Q: [u32; 6] = [2_977_044_472, 1_031_763_626, 238_369_193, 41_221_829, 5_549_128, 493_690];
    let q = Q[..5].iter().rev().fold(Q[5], |sum, c| c - mul_high(sum, f));
    ONE - ((mul_high(q, f) + 1) >> 1)
}

/// `a * b / 2^32`, rounded down.
fn mul_high(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}

/// `total * share / 2^32`, rounded down.
pub fn part(total: u64, share: u32) -> u64 {
    ((u128::from(total) * u128::from(share)) >> 32) as u64
}

/// `total * share / 2^32`, rounded up.
pub fn part_up(total: u64, share: u32) -> u64 {
    ((u128::from(total) * u128::from(share) + 0xffff_ffff) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every fraction there is: monotonic, octaves meet, and the error is as documented.
    #[test]
    fn powers_of_two_fall_and_are_within_their_error() {
        assert_eq!(exp2_of_minus(0), ONE);
        let mut last = ONE;
        for i in 0..1u32 << FRACTION {
            let f = i << (32 - FRACTION);
            let w = exp2_of_minus(f);
            assert!(w <= last && w >= ONE / 2, "2^-{f}");
            last = w;
            if i % 97 == 0 {
                let want = (-f64::from(f) / 4_294_967_296.0).exp2() * f64::from(ONE);
                assert!((f64::from(w) / want - 1.0).abs() < 1.5e-8, "2^-{f}: {w} for {want}");
            }
        }
    }

    #[test]
    fn weights_are_exponentials() {
        for temperature in [1e-3f32, 0.3, 0.7, 1.0, 1.5, 40.0, 1e9] {
            let sharpness = sharpness(temperature);
            for i in 0..20_000 {
                let below = 0.0013 * i as f32 * temperature;
                let want = (-f64::from(below) / f64::from(temperature)).exp() * f64::from(ONE);
                let have = f64::from(weight(-below, 0.0, sharpness));
                assert!(
                    (have - want).abs() <= 1e-6 * want + 0.5001,
                    "{below} at {temperature}: {have}, {want}"
                );
            }
        }
    }

    #[test]
    fn every_value_has_a_weight() {
        let tiny = f32::from_bits(1);
        for sharpness in [0.0, tiny, f32::MIN_POSITIVE, 1.5, 1443.0, f32::MAX, f32::INFINITY, f32::NAN] {
            for max in [0.0, -1.0, 3e38, f32::MAX] {
                let mut last = ONE;
                for below in [0.0f32, tiny, 1e-30, 1e-20, 1e-9, 1e-3, 0.5, 1.0, 20.0, 1e5, 1e20, f32::MAX] {
                    let w = weight(max - below, max, sharpness);
                    assert!(
                        w <= last && (w == ONE || max - below < max),
                        "{below} below {max} at {sharpness}"
                    );
                    last = w;
                }
                assert!(weight(f32::MIN, max, sharpness) <= last);
            }
        }
        assert_eq!(weight(f32::MIN, f32::MAX, sharpness(1e-3)), 0);
        assert_eq!(weight(f32::MIN, f32::MAX, 0.0), ONE);
        assert_eq!(weight(-1.0, 0.0, 1.0), ONE / 2);
        // The whole range of f32 is two octaves here.
        assert_eq!(weight(f32::MIN, f32::MAX, 2f32.powi(-128) * 1.0000001), 0x2000_0000);
        // Around the last weight above 0, 2^-32 of the highest.
        assert_eq!((weight(-31.99, 0.0, 1.0), weight(-32.0, 0.0, 1.0), weight(-33.0, 0.0, 1.0)), (1, 0, 0));
    }

    #[test]
    fn shares_are_exact_and_round_as_they_say() {
        assert_eq!((share(1.0), share(0.5), share(f32::MIN_POSITIVE)), (0, 1 << 31, 1));
        assert_eq!((least_weight(1.0), least_weight(0.0), least_weight(1e-30)), (ONE, 0, 1));
        let total = 3u64 * (1 << 40) + 1;
        assert_eq!((part(total, 1 << 31), part_up(total, 1 << 31)), (total / 2, total / 2 + 1));
        assert_eq!(part(u64::MAX >> 8, u32::MAX), ((u128::from(u64::MAX >> 8) * 0xffff_ffff) >> 32) as u64);
        assert_eq!(part_up(2 * u64::from(ONE), share(0.5)), u64::from(ONE));
    }
}
