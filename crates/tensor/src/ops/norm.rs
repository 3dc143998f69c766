//! Root-mean-square normalisation.

use super::reference::{Bounds, FLUSH, ReferenceError, UNIT, rounded, wide};
use super::{Binary, Check, Op, Operand, OperandError, elementwise, result};
use crate::{DType, HostTensor};

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    c.is(0, DType::F32)?;
    let row = [c.shape(0).last()];
    if matches!(op, Op::RmsNorm { .. }) {
        c.exactly(1, DType::F32, &row)?;
        return Ok(vec![result(DType::F32, c.dims(0))]);
    }
    c.exactly(1, DType::F32, c.dims(0))?;
    c.exactly(2, DType::F32, &row)?;
    Ok(vec![result(DType::F32, c.dims(0)); 2])
}

pub(super) fn reference(op: &Op, args: &[HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    match op {
        Op::RmsNorm { eps } => Ok(vec![rms_norm(&args[0], &args[1], *eps)?]),
        Op::AddRmsNorm { eps } => {
            let mut out = elementwise::reference(&Op::Binary(Binary::Add), &args[..2])?;
            out.push(rms_norm(&out[0], &args[2], *eps)?);
            Ok(out)
        }
        _ => unreachable!("not a norm"),
    }
}

fn rms_norm(x: &HostTensor, w: &HostTensor, eps: f32) -> Result<HostTensor, ReferenceError> {
    let mut y = wide(x)?;
    y.iter_mut().zip(slopes(x, w, eps)?).for_each(|(x, slope)| *x *= slope);
    rounded(x.dims(), &y)
}

/// What each element is multiplied with: the reciprocal root of its row times the gain.
fn slopes(x: &HostTensor, w: &HostTensor, eps: f32) -> Result<Vec<f64>, ReferenceError> {
    let (mut x, w) = (wide(x)?, wide(w)?);
    for row in x.chunks_exact_mut(w.len().max(1)) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter_mut().zip(&w).for_each(|(x, w)| *x = factor * w);
    }
    Ok(x)
}

pub(super) fn bounds(op: &Op, args: &[HostTensor]) -> Result<Bounds, ReferenceError> {
    // The squares are all positive: their sum is off by at most D units of itself, and the root halves that. The
    // division, the root and the two products round on their own. Where subnormal operands count as zero, as on many
    // GPUs, an element loses what it would have become.
    let width = args[0].shape().last() as f64;
    let results = reference(op, args)?;
    let (Op::RmsNorm { eps } | Op::AddRmsNorm { eps }) = op else { unreachable!("not a norm") };
    let (x, w) = match op {
        Op::AddRmsNorm { .. } => (&results[0], &args[2]),
        _ => (&args[0], &args[1]),
    };
    let slopes = slopes(x, w, *eps)?;
    let normed = results.last().map(wide).transpose()?.unwrap_or_default();
    let each = normed.iter().zip(slopes);
    let bound: Vec<f64> =
        each.map(|(y, slope)| (0.5 * width + 8.0) * UNIT * y.abs() + (2.0 + slope.abs()) * FLUSH).collect();
    Ok(match op {
        Op::AddRmsNorm { .. } => vec![vec![2.0 * FLUSH; bound.len()], bound],
        _ => vec![bound],
    })
}
