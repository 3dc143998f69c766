//! Table lookup and matrix products.

use super::{Check, Op, Operand, OperandError, result};
use crate::DType;

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    if matches!(op, Op::Gather) {
        let d = c.weight(0, 2)?[1];
        let rows = c.ranked(1, DType::U32, 1)?[0];
        return Ok(vec![result(DType::F32, &[rows, d])]);
    }
    c.is(0, DType::F32)?;
    let k = c.shape(0).last();
    let matrices = if let Op::MatMuls { biased } = op { biased.len() } else { 1 };
    let mut results = Vec::with_capacity(matrices);
    for i in 1..=matrices {
        let w = c.weight(i, 2)?;
        if w[1] != k {
            return c.fail(i, format!("has rows of {}, x has rows of {k}", w[1]));
        }
        let mut dims = c.dims(0).to_vec();
        match dims.last_mut() {
            Some(last) => *last = w[0],
            None => return c.fail(0, "is a scalar, must have rows"),
        }
        results.push(result(DType::F32, &dims));
    }
    if let Op::MatMuls { biased } = op {
        let with_bias = biased.iter().zip(1..).filter(|(b, _)| **b).map(|(_, i)| c.dims(i)[0]);
        for (bias, n) in (matrices + 1..).zip(with_bias) {
            c.exactly(bias, DType::F32, &[n])?;
        }
    }
    Ok(results)
}
