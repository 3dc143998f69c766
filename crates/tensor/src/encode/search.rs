//! The search for scales: small least-squares problems, tried from several starts.

use crate::DType;

/// Magnitudes below it count as zero: their reciprocals could overflow. 2^-100.
pub(super) const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// What the squared error of each element counts.
pub(super) fn weights<'a>(
    dtype: DType,
    x: &[f32],
    importance: Option<&[f32]>,
    out: &'a mut [f32; 256],
) -> &'a [f32] {
    let out = &mut out[..x.len()];
    let alike = match dtype {
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q1_0 => true,
        // Their levels are dense around zero already.
        DType::MXFP4 | DType::NVFP4 => true,
        _ => false,
    };
    let by_size = !alike || importance.is_some();
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len().max(1) as f32;
    for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
        let size = if by_size { (mean + x * x).sqrt() } else { 1.0 };
        *out = importance.map_or(1.0, |v| v[i]) * size;
    }
    // A block that nothing depends on is still to be near what it was.
    if out.iter().all(|w| *w <= 0.0) {
        out.fill(1.0);
    }
    out
}

/// The nearest integer, ties to even, of a value below 2^22: without a call, so that loops over it become vectors.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}

/// The nearest code of `x` in steps of `1 / inverse`.
#[inline(always)]
pub(super) fn code(x: f32, inverse: f32, low: f32, high: f32) -> f32 {
    round((x * inverse).max(low).min(high))
}

/// The reciprocal, or 0 of what is too small to have one.
#[inline(always)]
pub(super) fn inverse(x: f32) -> f32 {
    if x.abs() < TINY { 0.0 } else { 1.0 / x }
}

/// The element of largest magnitude.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |a, b| if b.abs() > a.abs() { *b } else { a })
}

/// The step `d` that brings `d * code` near to `x`, with codes from `low` to `high`; 0 for a block of zeros. `low` is
/// negative and the farther end, and the element of largest magnitude goes there.
pub(super) fn symmetric(x: &[f32], w: &[f32], low: i32, high: i32) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    let (low, high) = (low as f32, high as f32);
    // For codes l the best step is (w x l) / (w l l), and the error is then (w x x) - (w x l)^2 / (w l l).
    let attempt = |inverse: f32| {
        let (mut xl, mut ll) = (0.0f32, 0.0f32);
        for (x, w) in x.iter().zip(w) {
            let l = code(*x, inverse, low, high);
            xl += w * x * l;
            ll += w * l * l;
        }
        if ll > 0.0 { (xl * (xl / ll), xl / ll) } else { (0.0, 0.0) }
    };
    let mut best = attempt(low / extreme);
    for step in -9..=9 {
        let found = attempt((low - 0.1 * step as f32) / extreme);
        if found.0 > best.0 {
            best = found;
        }
    }
    refine(best, attempt)
}

/// Follows a step to the codes that are nearest for it, and so on, while that gains.
fn refine(mut best: (f32, f32), attempt: impl Fn(f32) -> (f32, f32)) -> f32 {
    for _ in 0..4 {
        let found = attempt(inverse(best.1));
        if found.0 <= best.0 {
            break;
        }
        best = found;
    }
    best.1
}

/// Step and constant that bring `d * code + m` near to `x`, with codes from 0 to `high`. With `below` the constant must
/// not be positive.
pub(super) fn affine(x: &[f32], w: &[f32], high: i32, below: bool) -> (f32, f32) {
    let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
    x.iter().for_each(|x| (least, most) = (least.min(*x), most.max(*x)));
    if below {
        least = least.min(0.0);
    }
    if most - least < TINY {
        return (0.0, least);
    }
    let high = high as f32;
    let (mut sw, mut sx) = (0.0f32, 0.0f32);
    for (x, w) in x.iter().zip(w) {
        sw += w;
        sx += w * x;
    }
    // The best step and constant for the codes that are nearest for given ones, and their error.
    let attempt = |inverse: f32, from: f32| {
        let (mut sl, mut sll, mut sxl) = (0.0f32, 0.0f32, 0.0f32);
        for (x, w) in x.iter().zip(w) {
            let l = code(x - from, inverse, 0.0, high);
            sl += w * l;
            sll += w * l * l;
            sxl += w * x * l;
        }
        let determinant = sw * sll - sl * sl;
        let (mut d, mut m) = (0.0, from);
        if determinant > 0.0 {
            d = (sw * sxl - sx * sl) / determinant;
            m = (sll * sx - sl * sxl) / determinant;
        }
        if determinant <= 0.0 || (below && m > 0.0) {
            m = if below { m.min(0.0) } else { from };
            d = if sll > 0.0 { (sxl - m * sl) / sll } else { 0.0 };
        }
        (error(x, w, d, m, high), d, m)
    };
    let plain = (most - least) / high;
    let mut best = (error(x, w, plain, least, high), plain, least);
    for step in -10..=10 {
        let found = attempt((high + 0.1 * step as f32) / (most - least), least);
        if found.0 < best.0 {
            best = found;
        }
    }
    for _ in 0..4 {
        let found = attempt(inverse(best.1), best.2);
        if found.0 >= best.0 {
            break;
        }
        best = found;
    }
    (best.1, best.2)
}

/// The weighted squared error with the nearest codes.
fn error(x: &[f32], w: &[f32], d: f32, m: f32, high: f32) -> f32 {
    let inverse = inverse(d);
    let of = |(x, w): (&f32, &f32)| {
        let off = d * code(x - m, inverse, 0.0, high) + m - x;
        w * off * off
    };
    x.iter().zip(w).map(of).sum()
}

/// The step that brings `d * level` near to `x` with levels of a book that ascends; 0 for a block of zeros.
pub(super) fn book(x: &[f32], w: &[f32], levels: &[i8; 16]) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    let attempt = |inverse: f32| {
        let (mut xl, mut ll) = (0.0f32, 0.0f32);
        for (x, w) in x.iter().zip(w) {
            let l = f32::from(levels[nearest(x * inverse, levels)]);
            xl += w * x * l;
            ll += w * l * l;
        }
        if ll > 0.0 { (xl * (xl / ll), xl / ll) } else { (0.0, 0.0) }
    };
    let (first, last) = (f32::from(levels[0]), f32::from(levels[15]));
    let mut best = attempt(first / extreme);
    for step in -7..=7 {
        // The largest element may go to either end.
        for end in [first, last] {
            let found = attempt(end * (1.0 + 0.02 * step as f32) / extreme);
            if found.0 > best.0 {
                best = found;
            }
        }
    }
    refine(best, attempt)
}

/// The index of the level nearest to `x`, of levels that ascend.
#[inline(always)]
pub(super) fn nearest(x: f32, levels: &[i8; 16]) -> usize {
    // The number of midpoints below: sixteen comparisons without a branch.
    let mut below = 0;
    for pair in levels.windows(2) {
        let middle = 0.5 * (f32::from(pair[0]) + f32::from(pair[1]));
        below += usize::from(x > middle);
    }
    below
}
