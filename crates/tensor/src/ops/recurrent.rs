//! Ops that carry a state from row to row.

use super::{Check, Operand, OperandError, result};
use crate::DType;

pub(super) fn infer(c: &Check) -> Result<Vec<Operand>, OperandError> {
    let x = c.ranked(0, DType::F32, 2)?;
    let w = c.ranked(1, DType::F32, 2)?;
    if w[0] != x[1] || w[1] < 2 {
        return c.fail(1, format!("has shape {}, must be [{}, at least 2]", c.shape(1), x[1]));
    }
    let ring = c.ranked(2, DType::F32, 3)?;
    if ring[1] != w[1] - 1 || ring[2] != x[1] {
        return c.fail(2, format!("has shape {}, must be [slots, {}, {}]", c.shape(2), w[1] - 1, x[1]));
    }
    c.exactly(3, DType::U32, &x[..1])?;
    let seqs = c.ranked(4, DType::U32, 1)?[0];
    c.exactly(5, DType::U32, &[seqs])?;
    c.exactly(6, DType::U32, &x[..1])?;
    Ok(vec![result(DType::F32, x)])
}
