//! The paged KV cache and attention over it (running softmax: Milakov and Gimelshein, 2018).

use super::{Check, KV_BLOCK, Op, Operand, OperandError, result};
use crate::DType;

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    let write = matches!(op, Op::KvWrite);
    let cache = if write { 2 } else { 1 };
    if !matches!(c.dtype(cache), DType::F32 | DType::F16) {
        return c.fail(cache, format!("is {}, a KV cache is F32 or F16", c.dtype(cache)));
    }
    let kv = c.ranked(cache, c.dtype(cache), 4)?;
    if kv[1] != KV_BLOCK {
        return c.fail(cache, format!("has blocks of {} positions, must be {KV_BLOCK}", kv[1]));
    }
    let first = c.ranked(0, DType::F32, 3)?;
    let rows = first[0];
    let mut next = cache + 1;
    c.exactly(next, DType::U32, &[rows])?;
    if !write {
        next += 1;
        c.exactly(next, DType::U32, &[rows])?;
    }
    let seqs = c.ranked(next + 1, DType::U32, 1)?[0];
    if c.ranked(next + 2, DType::U32, 2)?[0] != seqs {
        return c.fail(
            next + 2,
            format!("has shape {}, must have a row for each of {seqs} sequences", c.shape(next + 2)),
        );
    }
    if write {
        let v = c.ranked(1, DType::F32, 3)?;
        if v[..2] != first[..2] {
            return c.fail(
                1,
                format!("has shape {}, must have the rows and heads of k {}", c.shape(1), c.shape(0)),
            );
        }
        if kv[2] != first[1] || kv[3] != first[2] + v[2] {
            return c.fail(
                cache,
                format!("has shape {}, does not hold k {} and v {}", c.shape(2), c.shape(0), c.shape(1)),
            );
        }
        return Ok(vec![]);
    }
    if kv[2] == 0 || first[1] % kv[2] != 0 {
        return c.fail(0, format!("has {} heads, not a multiple of the cache's {}", first[1], kv[2]));
    }
    if kv[3] <= first[2] {
        return c.fail(0, format!("has head dim {}, the cache holds k and v in {}", first[2], kv[3]));
    }
    Ok(vec![result(DType::F32, &[rows, first[1], kv[3] - first[2]])])
}
