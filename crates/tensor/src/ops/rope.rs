//! Rotary position embedding (Su et al., 2021).

use super::reference::{Bounds, FLUSH, ReferenceError, UNIT, rounded, wide};
use super::{Check, Operand, OperandError, result};
use crate::{DType, HostTensor};

pub(super) fn infer(c: &Check) -> Result<Vec<Operand>, OperandError> {
    let x = c.ranked(0, DType::F32, 3)?;
    c.exactly(1, DType::U32, &x[..1])?;
    let f = c.ranked(2, DType::F32, 1)?[0];
    if 2 * f > x[2] {
        return c.fail(2, format!("{f} frequencies rotate {} dims, a head has {}", 2 * f, x[2]));
    }
    Ok(vec![result(DType::F32, x)])
}

/// Calls `each(index of the first of the pair, distance to the second, angle)` for every rotated pair.
fn for_pairs(args: &[HostTensor], mut each: impl FnMut(usize, usize, f64)) -> Result<(), ReferenceError> {
    let (pos, inv_freq) = (args[1].u32s()?, wide(&args[2])?);
    let (heads, width) = (args[0].dims()[1], args[0].dims()[2]);
    for (r, pos) in pos.iter().enumerate() {
        for head in 0..heads {
            let start = (r * heads + head) * width;
            for (i, f) in inv_freq.iter().enumerate() {
                each(start + i, inv_freq.len(), f64::from(*pos) * f);
            }
        }
    }
    Ok(())
}

pub(super) fn reference(args: &[HostTensor], magnitude: f32) -> Result<Vec<HostTensor>, ReferenceError> {
    let mut y = wide(&args[0])?;
    for_pairs(args, |i, half, angle| {
        let (sin, cos) = angle.sin_cos();
        let (a, b) = (y[i], y[i + half]);
        y[i] = (a * cos - b * sin) * f64::from(magnitude);
        y[i + half] = (b * cos + a * sin) * f64::from(magnitude);
    })?;
    Ok(vec![rounded(args[0].dims(), &y)?])
}

pub(super) fn bounds(args: &[HostTensor], magnitude: f32) -> Result<Bounds, ReferenceError> {
    // What passes is copied. The angle is an f32 product, so it is off by a unit of itself, and sine and cosine by as
    // much; then come their own errors and three roundings.
    let x = wide(&args[0])?;
    let mut bound = vec![0.0; x.len()];
    for_pairs(args, |i, half, angle| {
        let size = (x[i].abs() + x[i + half].abs()) * f64::from(magnitude.abs());
        bound[i] = (angle.abs() + 8.0) * UNIT * size + 2.0 * FLUSH;
        bound[i + half] = bound[i];
    })?;
    Ok(vec![bound])
}
