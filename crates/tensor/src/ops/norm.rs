//! Root-mean-square normalisation.

use super::{Check, Op, Operand, OperandError, result};
use crate::DType;

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
