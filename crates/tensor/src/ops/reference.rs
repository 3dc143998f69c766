//! What the references share: their errors, the rounding model of their bounds, and the rows of a step.
//!
//! **References** follow the words of each op, accumulate in f64 and round every result once to its type.
//!
//! **Bounds** say, per element, how far a kernel may lie from the reference. They follow from what a kernel is allowed
//! to do (f32 arithmetic in any order, with or without fused multiply-add, subnormals kept or flushed; in
//! [`Precision::Fast`] activations of quantised products rounded to 8 bits) by the usual analysis: a sum of n products
//! is off by at most n [`UNIT`] times the sum of their magnitudes (Higham, *Accuracy and Stability of Numerical
//! Algorithms*, 3.1).

use super::{Op, OperandError};
use crate::blocks;
use crate::host::{HostError, HostTensor};

/// The arithmetic that is allowed, a matter of engine configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// f32 activations and KV.
    Exact,
    /// 8-bit activations against quantised weights, f16 KV.
    Fast,
}

/// Why a reference has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// The operands do not fit the op.
    #[error(transparent)]
    Operand(#[from] OperandError),
    /// An operand cannot be read as it must.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An operand holds a value that the op does not allow.
    #[error("operand {operand} ({role}): {problem}")]
    Value {
        /// Which operand.
        operand: usize,
        /// Its role.
        role: &'static str,
        /// The value and what was expected.
        problem: String,
    },
    /// A row of operand 0 holds values that the op does not allow. The results of the other rows do not depend on it.
    #[error("row {row}: {problem}")]
    Row {
        /// Which entry of the first axis; the first where there are several.
        row: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// The unit roundoff of f32, 2^-24.
pub(crate) const UNIT: f64 = 1.0 / 16_777_216.0;

/// What flushing a subnormal operand and a subnormal result to zero costs at most, 2^-125.
pub(crate) const FLUSH: f64 = 2.0 * f32::MIN_POSITIVE as f64;

/// Per element of each result, how far a kernel may lie from the reference.
pub type Bounds = Vec<Vec<f64>>;

pub(crate) fn bad_value<T>(op: &Op, operand: usize, problem: String) -> Result<T, ReferenceError> {
    let role = op.roles().get(operand).copied().unwrap_or("operand");
    Err(ReferenceError::Value { operand, role, problem })
}

/// An F32 result, each element rounded once.
pub(crate) fn rounded(dims: &[usize], values: &[f64]) -> Result<HostTensor, ReferenceError> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Ok(HostTensor::from_f32(dims, &values)?)
}

/// The same tensor with every element replaced by its magnitude; how bounds reuse a reference.
pub(crate) fn magnitude(x: &HostTensor) -> Result<HostTensor, ReferenceError> {
    let mut out = x.clone();
    out.f32s_mut()?.iter_mut().for_each(|v| *v = v.abs());
    Ok(out)
}

/// The elements of an F32 tensor as f64.
pub(crate) fn wide(x: &HostTensor) -> Result<Vec<f64>, ReferenceError> {
    Ok(x.f32s()?.iter().map(|v| f64::from(*v)).collect())
}

/// Which sequence each row belongs to; `None` for padding. `operand` is where the op takes `extents`.
pub(crate) fn sequence_of_rows(
    op: &Op,
    operand: usize,
    extents: &HostTensor,
    rows: usize,
) -> Result<Vec<Option<usize>>, ReferenceError> {
    let mut out = Vec::with_capacity(rows);
    for (sequence, extent) in extents.u32s()?.iter().enumerate() {
        let end = out.len().checked_add(*extent as usize).filter(|end| *end <= rows);
        match end {
            Some(end) => out.resize(end, Some(sequence)),
            None => return bad_value(op, operand, format!("the extents sum to more than the {rows} rows")),
        }
    }
    out.resize(rows, None);
    Ok(out)
}

/// Dense rows of weights decoded one at a time.
pub(crate) struct Rows<'a> {
    table: &'a HostTensor,
    row: Vec<f32>,
}

impl<'a> Rows<'a> {
    pub(crate) fn of(table: &'a HostTensor) -> Rows<'a> {
        Rows { table, row: vec![0.0; table.shape().last()] }
    }

    /// The decoded weights of row `at`.
    pub(crate) fn decoded(&mut self, at: usize) -> Result<&[f32], ReferenceError> {
        self.table.decode_row(at, &mut self.row)?;
        Ok(&self.row)
    }

    /// For each weight of row `at`, the magnitudes of what a kernel may add up to get it: a code times its scale and a
    /// minimum (or the format's fixed offset of codes), `|w - m| + |m|`. Kernels multiply activations with the two
    /// parts separately, so rounding errors scale with these and not with `|w|`.
    pub(crate) fn parts(&mut self, at: usize) -> Result<Vec<f64>, ReferenceError> {
        let codes = blocks::codes(self.table.dtype());
        let mut bare = HostTensor::new(self.table.dtype(), &[self.row.len()], self.table.row_bytes(at)?)?;
        let mut offsets = vec![0.0; self.row.len()];
        if !codes.is_empty() {
            // With every code 0 the decoder gives the offset alone.
            for block in bare.bytes_mut().chunks_exact_mut(self.table.dtype().block_bytes()) {
                block[codes.clone()].fill(0);
            }
            bare.decode_row(0, &mut offsets)?;
        }
        let w = self.decoded(at)?;
        let part = |(w, m): (&f32, &f32)| (f64::from(*w) - f64::from(*m)).abs() + f64::from(m.abs());
        Ok(w.iter().zip(&offsets).map(part).collect())
    }
}
