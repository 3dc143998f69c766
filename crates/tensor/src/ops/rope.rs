//! Rotary position embedding (Su et al., 2021).

use super::{Check, Operand, OperandError, result};
use crate::DType;

pub(super) fn infer(c: &Check) -> Result<Vec<Operand>, OperandError> {
    let x = c.ranked(0, DType::F32, 3)?;
    c.exactly(1, DType::U32, &x[..1])?;
    let f = c.ranked(2, DType::F32, 1)?[0];
    if 2 * f > x[2] {
        return c.fail(2, format!("{f} frequencies rotate {} dims, a head has {}", 2 * f, x[2]));
    }
    Ok(vec![result(DType::F32, x)])
}
