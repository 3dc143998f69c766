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
    let (mut y, w) = (wide(x)?, wide(w)?);
    for row in y.chunks_exact_mut(w.len().max(1)) {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter_mut().zip(&w).for_each(|(x, w)| *x *= factor * w);
    }
    rounded(x.dims(), &y)
}

pub(super) fn bounds(op: &Op, args: &[HostTensor]) -> Result<Bounds, ReferenceError> {
    // The squares are all positive: their sum is off by at most D units of itself, and the root halves that. The
    // division, the root and the two products round on their own.
    let width = args[0].shape().last() as f64;
    let results = reference(op, args)?;
    let normed = results.last().map(wide).transpose()?.unwrap_or_default();
    let bound = normed.iter().map(|y| (0.5 * width + 8.0) * UNIT * y.abs() + 2.0 * FLUSH).collect();
    Ok(match op {
        Op::AddRmsNorm { .. } => vec![vec![2.0 * FLUSH; normed.len()], bound],
        _ => vec![bound],
    })
}
