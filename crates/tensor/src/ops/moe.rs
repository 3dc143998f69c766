//! Mixture of experts: routing, chosen matrices, weighted sum (Shazeer et al., 2017).

use super::linear::{matmul, matmul_bound};
use super::reference::{Bounds, FLUSH, Precision, ReferenceError, UNIT, bad_value, magnitude, rounded, wide};
use super::{Check, Op, Operand, OperandError, result};
use crate::{DType, HostTensor};

/// What [`Op::Route`] says of logits that choose nothing.
pub const REFUSED_LOGITS: &str = "the router's logits hold NaN, or no largest that is finite";

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    match op {
        Op::Route { k, .. } => {
            let x = c.ranked(0, DType::F32, 2)?;
            if *k == 0 || *k > x[1] {
                return c.fail(0, format!("has {} experts, {k} cannot be chosen", x[1]));
            }
            Ok(vec![result(DType::F32, &[x[0], *k]), result(DType::U32, &[x[0], *k])])
        }
        Op::ExpertMatMul => {
            c.is(0, DType::F32)?;
            let x = c.dims(0);
            let w = c.weight(1, 3)?;
            let chosen = c.ranked(2, DType::U32, 2)?;
            if !(x.len() == 2 || x.len() == 3 && x[1] == chosen[1]) || x[0] != chosen[0] {
                return c
                    .fail(0, format!("has shape {}, does not go with experts {}", c.shape(0), c.shape(2)));
            }
            if c.shape(0).last() != w[2] {
                return c.fail(1, format!("has rows of {}, x has rows of {}", w[2], c.shape(0).last()));
            }
            Ok(vec![result(DType::F32, &[chosen[0], chosen[1], w[1]])])
        }
        _ => {
            let y = c.ranked(0, DType::F32, 3)?;
            c.exactly(1, DType::F32, &y[..2])?;
            Ok(vec![result(DType::F32, &[y[0], y[2]])])
        }
    }
}

pub(super) fn reference(op: &Op, args: &[HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    match op {
        Op::Route { k, renormalise } => route(&args[0], *k, *renormalise),
        Op::ExpertMatMul => {
            let y = expert_products(op, args, matmul)?;
            let dims = [args[2].dims()[0], args[2].dims()[1], args[1].dims()[1]];
            Ok(vec![rounded(&dims, &y)?])
        }
        _ => {
            let (rows, width) = (args[0].dims()[0], args[0].dims()[2]);
            Ok(vec![rounded(&[rows, width], &expert_sum(&args[0], &args[1])?)?])
        }
    }
}

pub(super) fn bounds(op: &Op, args: &[HostTensor], precision: Precision) -> Result<Bounds, ReferenceError> {
    match op {
        Op::Route { k, renormalise } => {
            // An exponential carries its argument's rounding, which is a unit of the distance to the largest logit;
            // the sum of E of them and a few operations follow, twice over when the chosen ones are renormalised.
            let weights = route(&args[0], *k, *renormalise)?.swap_remove(0);
            let experts = args[0].dims()[1];
            let mut bound = Vec::with_capacity(weights.shape().elements());
            for (weights, logits) in weights.f32s()?.chunks(*k).zip(args[0].f32s()?.chunks(experts)) {
                let top = logits.iter().fold(f32::NEG_INFINITY, |m, l| m.max(*l));
                let finite = logits.iter().filter(|l| l.is_finite());
                let spread = finite.map(|l| f64::from(top) - f64::from(*l)).fold(0.0, f64::max).min(128.0);
                let relative = 2.0 * (experts as f64 + spread + 8.0) * UNIT;
                bound.extend(weights.iter().map(|w| relative * f64::from(*w) + 2.0 * FLUSH));
            }
            let ids = vec![0.0; bound.len()];
            Ok(vec![bound, ids])
        }
        Op::ExpertMatMul => Ok(vec![expert_products(op, args, |x, w| matmul_bound(x, w, precision))?]),
        _ => {
            let sizes = expert_sum(&magnitude(&args[0])?, &magnitude(&args[1])?)?;
            let terms = args[0].dims()[1] as f64 + 2.0;
            Ok(vec![sizes.iter().map(|s| terms * (UNIT * s + FLUSH)).collect()])
        }
    }
}

fn route(logits: &HostTensor, k: usize, renormalise: bool) -> Result<Vec<HostTensor>, ReferenceError> {
    let (rows, experts) = (logits.dims()[0], logits.dims()[1]);
    let (mut weights, mut ids) = (Vec::with_capacity(rows * k), Vec::with_capacity(rows * k));
    for (r, row) in wide(logits)?.chunks_exact(experts).enumerate() {
        let top = row.iter().fold(f64::NEG_INFINITY, |m, l| m.max(*l));
        if row.iter().any(|l| l.is_nan()) || !top.is_finite() {
            return Err(ReferenceError::Row { row: r, problem: REFUSED_LOGITS });
        }
        let sum: f64 = row.iter().map(|l| (l - top).exp()).sum();
        // Softmax keeps the order of the logits; a stable sort leaves equal ones in the order of their ids.
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
        order.truncate(k);
        let chosen: Vec<f64> = order.iter().map(|e| (row[*e] - top).exp() / sum).collect();
        let divisor = if renormalise { chosen.iter().sum() } else { 1.0 };
        weights.extend(chosen.iter().map(|w| w / divisor));
        ids.extend(order.iter().map(|e| *e as u32));
    }
    Ok(vec![rounded(&[rows, k], &weights)?, HostTensor::from_u32(&[rows, k], &ids)?])
}

/// `product(x, matrix of the expert)` for every row and slot.
fn expert_products(
    op: &Op,
    args: &[HostTensor],
    product: impl Fn(&[f64], &HostTensor) -> Result<Vec<f64>, ReferenceError>,
) -> Result<Vec<f64>, ReferenceError> {
    let (x, w, slots) = (wide(&args[0])?, &args[1], args[2].dims()[1]);
    let (experts, n, k) = (w.dims()[0], w.dims()[1], w.dims()[2]);
    let bytes = w.bytes().len().checked_div(experts).unwrap_or(0);
    let mut out = Vec::with_capacity(args[2].shape().elements() * n);
    for (i, expert) in args[2].u32s()?.iter().enumerate() {
        let expert = *expert as usize;
        if expert >= experts {
            return bad_value(op, 2, format!("row {} chooses expert {expert} of {experts}", i / slots));
        }
        let row = if args[0].dims().len() == 2 { i / slots } else { i };
        let matrix = HostTensor::new(w.dtype(), &[n, k], &w.bytes()[expert * bytes..][..bytes])?;
        out.extend(product(&x[row * k..][..k], &matrix)?);
    }
    Ok(out)
}

fn expert_sum(y: &HostTensor, weights: &HostTensor) -> Result<Vec<f64>, ReferenceError> {
    let (rows, slots, width) = (y.dims()[0], y.dims()[1], y.dims()[2]);
    let (y, weights) = (wide(y)?, wide(weights)?);
    let mut out = vec![0.0; rows * width];
    for (i, weight) in weights.iter().enumerate() {
        let sum = &mut out[i / slots * width..][..width];
        sum.iter_mut().zip(&y[i * width..]).for_each(|(o, y)| *o += weight * y);
    }
    Ok(out)
}
