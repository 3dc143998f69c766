//! Mixture of experts: routing, chosen matrices, weighted sum (Shazeer et al., 2017).

use super::{Check, Op, Operand, OperandError, result};
use crate::DType;

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
