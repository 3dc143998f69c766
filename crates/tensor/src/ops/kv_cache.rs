//! How caches keep keys and values: their types, and the arithmetic of [`KvType::Q8_0`].

use std::fmt;

use half::bf16;

use crate::DType;

/// Elements of a key or value that share a scale in a [`KvType::Q8_0`] cache.
pub const KV_SCALED: usize = 32;

/// How a cache stores keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the names the field uses
pub enum KvType {
    /// As they are.
    F32,
    /// binary16.
    F16,
    /// Signed bytes with a scale for each [`KV_SCALED`] elements, counted from the first of a key and of a value: the blocks
    /// of [`DType::Q8_0`], of which the last is shorter where a width is no multiple. Scales are bfloat16, not binary16: they
    /// have the range of f32, so that no cache overflows and small values do not vanish.
    Q8_0,
}

impl KvType {
    /// Every type, the widest first.
    pub const ALL: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

    /// The type of a cache whose elements have this one; `None` for those that no cache has.
    #[must_use]
    pub const fn of(dtype: DType) -> Option<KvType> {
        match dtype {
            DType::F32 => Some(KvType::F32),
            DType::F16 => Some(KvType::F16),
            DType::Q8_0 => Some(KvType::Q8_0),
            _ => None,
        }
    }

    /// The element type of a graph's state.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Q8_0 => DType::Q8_0,
        }
    }

    /// The field's name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
        }
    }

    /// Bytes that a key and a value take whose elements are `width` in all, whichever way these are divided, without what a
    /// device adds to them.
    #[must_use]
    pub const fn bytes_for(self, width: usize) -> usize {
        match self {
            KvType::F32 => 4 * width,
            KvType::F16 => 2 * width,
            KvType::Q8_0 => width + 2 * q8_scales(width),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The most scales that a key and a value of `width` elements in all have in a [`KvType::Q8_0`] cache: there is one more
/// than whole blocks where both end in a shorter one.
#[must_use]
pub const fn q8_scales(width: usize) -> usize {
    (width + 2 * KV_SCALED - 2) / KV_SCALED
}

/// The scale of a block of a [`KvType::Q8_0`] cache whose largest magnitude is `largest`: that divided by 127 in f32 and
/// rounded up, so that no code is beyond 127. NaN for what is not finite, which makes all of the block NaN.
#[inline]
#[must_use]
pub fn q8_scale(largest: f32) -> bf16 {
    if !largest.is_finite() {
        return bf16::NAN;
    }
    bf16::from_bits(((largest / 127.0).to_bits().wrapping_add(0xffff) >> 16) as u16)
}

/// The codes of a block of a [`KvType::Q8_0`] cache, and its scale: nearest to `x / scale`, ties to even, and 0 where the
/// scale is.
///
/// # Panics
/// When there are not as many codes as elements.
pub fn q8_block(x: &[f32], codes: &mut [i8]) -> bf16 {
    assert_eq!(x.len(), codes.len(), "a code for each element");
    // NaN must not be passed over.
    let largest = x.iter().fold(0, |m, v| v.abs().to_bits().max(m));
    let scale = q8_scale(f32::from_bits(largest));
    for (code, x) in codes.iter_mut().zip(x) {
        *code = if scale == bf16::ZERO { 0 } else { (x / scale.to_f32()).round_ties_even() as i8 };
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_division_of_a_width_has_more_scales() {
        for width in 2..300 {
            let of = |k: usize| k.div_ceil(KV_SCALED) + (width - k).div_ceil(KV_SCALED);
            assert_eq!(q8_scales(width), (1..width).map(of).max().unwrap(), "{width}");
        }
    }

    #[test]
    fn codes_lie_within_half_a_step_at_every_size() {
        for exponent in -120..120 {
            let size = 2f32.powi(exponent);
            let x: Vec<f32> = (0..29).map(|i| (i as f32 * 0.73).sin() * size).collect();
            let mut codes = [0; 29];
            let scale = q8_block(&x, &mut codes).to_f32();
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(scale >= largest / 127.0 && scale <= largest / 126.0, "{exponent}");
            assert!(codes.iter().any(|code| code.abs() >= 126), "{exponent}: {codes:?}");
            for (code, x) in codes.iter().zip(&x) {
                // The product is exact: 7 bits by 8.
                assert!((f32::from(*code) * scale - x).abs() <= 0.5 * scale, "{exponent}: {x}");
            }
        }
    }

    #[test]
    fn nothing_becomes_something_and_no_number_stays_none() {
        let mut codes = [1i8; 2];
        assert_eq!(q8_block(&[0.0, -0.0], &mut codes), bf16::ZERO);
        assert_eq!(codes, [0, 0]);
        // Too small for a scale.
        assert_eq!(q8_block(&[f32::from_bits(9), 0.0], &mut codes), bf16::ZERO);
        assert_eq!(codes, [0, 0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(q8_block(&[1.0, bad], &mut codes).is_nan(), "{bad}");
        }
        let scale = q8_block(&[f32::MAX, f32::MIN], &mut codes);
        assert!(scale.is_finite());
        assert_eq!((codes[0] >= 126, codes[1]), (true, -codes[0]));
    }
}
