//! Table lookup and matrix products.

use super::reference::{Bounds, FLUSH, Precision, ReferenceError, Rows, UNIT, rounded, wide};
use super::{Check, Op, Operand, OperandError, result};
use crate::blocks::{self, Field, Role};
use crate::{DType, HostTensor};

/// Activations in a block that shares one 8-bit scale in [`Precision::Fast`].
pub const ACTIVATION_BLOCK: usize = 32;

/// In [`Precision::Fast`] a block of activations that are all smaller may count as zeros. 2^-100.
pub const TINY_ACTIVATIONS: f64 = 1.0 / (1u128 << 100) as f64;

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

pub(super) fn reference(op: &Op, args: &[HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    match op {
        Op::Gather => Ok(vec![gather(&args[0], args[1].u32s()?)?]),
        Op::MatMuls { biased } => {
            let mut biases = args[1 + biased.len()..].iter();
            let product = |(w, biased): (&HostTensor, &bool)| {
                let mut y = matmul(&wide(&args[0])?, w)?;
                if let Some(bias) = biased.then(|| biases.next()).flatten() {
                    add_row(&mut y, bias.f32s()?);
                }
                rounded(&[args[0].dims()[0], w.dims()[0]], &y)
            };
            args[1..].iter().zip(biased).map(product).collect()
        }
        _ => {
            let mut dims = args[0].dims().to_vec();
            dims.pop();
            dims.push(args[1].dims()[0]);
            Ok(vec![rounded(&dims, &matmul(&wide(&args[0])?, &args[1])?)?])
        }
    }
}

pub(super) fn bounds(op: &Op, args: &[HostTensor], precision: Precision) -> Result<Bounds, ReferenceError> {
    if matches!(op, Op::Gather) {
        return Ok(vec![gather_bound(&args[0], args[1].u32s()?)?]);
    }
    let x = wide(&args[0])?;
    let matrices = if let Op::MatMuls { biased } = op { biased.len() } else { 1 };
    let mut out =
        (1..=matrices).map(|i| matmul_bound(&x, &args[i], precision)).collect::<Result<Vec<_>, _>>()?;
    if let Op::MatMuls { biased } = op {
        // The sum with the bias rounds once more, relative to the sum.
        for (bound, y) in
            out.iter_mut().zip(reference(op, args)?).zip(biased).filter(|(_, b)| **b).map(|(a, _)| a)
        {
            bound.iter_mut().zip(y.f32s()?).for_each(|(b, y)| *b += 2.0 * UNIT * f64::from(y.abs()));
        }
    }
    Ok(out)
}

fn gather(table: &HostTensor, ids: &[u32]) -> Result<HostTensor, ReferenceError> {
    let (known, width) = (table.dims()[0], table.dims()[1]);
    let mut out = vec![0.0; ids.len() * width];
    for (r, id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < known) {
        table.decode_row(*id as usize, &mut out[r * width..][..width])?;
    }
    Ok(HostTensor::from_f32(&[ids.len(), width], &out)?)
}

/// Decoding rounds each product and difference on its own; a kernel may fuse the two.
fn gather_bound(table: &HostTensor, ids: &[u32]) -> Result<Vec<f64>, ReferenceError> {
    let (known, width) = (table.dims()[0], table.dims()[1]);
    let mut out = vec![0.0; ids.len() * width];
    let added = |field: &Field| matches!(field.role, Role::Constant | Role::Minimum);
    let has_minimum = blocks::fields(table.dtype()).iter().any(added);
    let mut rows = Rows::of(table);
    for (r, id) in ids.iter().enumerate().filter(|(_, id)| has_minimum && (**id as usize) < known) {
        let parts = rows.parts(*id as usize)?;
        out[r * width..][..width].iter_mut().zip(parts).for_each(|(b, p)| *b = 2.0 * UNIT * p);
    }
    Ok(out)
}

/// `x W^T` for `x` of rows as long as those of `w`, row-major, not rounded.
pub(super) fn matmul(x: &[f64], w: &HostTensor) -> Result<Vec<f64>, ReferenceError> {
    product(x, w.dims()[0], w.shape().last(), &mut Rows::of(w), |rows, at, wide| {
        wide.extend(rows.decoded(at)?.iter().map(|w| f64::from(*w)));
        Ok(())
    })
}

/// How far one or more rows may lie from [`matmul`].
pub(super) fn matmul_bound(
    x: &[f64],
    w: &HostTensor,
    precision: Precision,
) -> Result<Vec<f64>, ReferenceError> {
    let (n, k) = (w.dims()[w.dims().len() - 2], w.shape().last());
    let magnitudes: Vec<f64> = x.iter().map(|x| x.abs()).collect();
    let sums = product(&magnitudes, n, k, &mut Rows::of(w), |rows, at, wide| {
        wide.extend(rows.parts(at)?);
        Ok(())
    })?;
    // One rounding per term, and three for the scales of weights and activations and their product.
    let mut out: Vec<f64> = sums.iter().map(|s| (k as f64 + 3.0) * (UNIT * s + FLUSH)).collect();
    if precision == Precision::Fast && w.dtype().is_quantised() {
        // Codes of -127..127: a step is amax / 127, and rounding to the nearest code misses by half a step. Blocks too
        // small for the reciprocal of a step to be finite become zeros.
        let half_step = |block: &[f64]| {
            let amax = block.iter().fold(0.0, |m: f64, x| m.max(*x));
            if amax < TINY_ACTIVATIONS { amax } else { amax / 254.0 }
        };
        let steps: Vec<f64> = magnitudes
            .chunks(k.max(1))
            .flat_map(|row| row.chunks(ACTIVATION_BLOCK))
            .flat_map(|block| std::iter::repeat_n(half_step(block), block.len()))
            .collect();
        let rounding = product(&steps, n, k, &mut Rows::of(w), |rows, at, wide| {
            wide.extend(rows.decoded(at)?.iter().map(|w| f64::from(w.abs())));
            Ok(())
        })?;
        out.iter_mut().zip(rounding).for_each(|(b, r)| *b += r);
    }
    Ok(out)
}

/// Rows of `x` times rows of a table that `read` makes wide, `[rows, n]`.
fn product(
    x: &[f64],
    n: usize,
    k: usize,
    table: &mut Rows,
    mut read: impl FnMut(&mut Rows, usize, &mut Vec<f64>) -> Result<(), ReferenceError>,
) -> Result<Vec<f64>, ReferenceError> {
    let rows = x.len().checked_div(k).unwrap_or(0);
    let mut out = vec![0.0; rows * n];
    let mut wide = Vec::with_capacity(k);
    for column in 0..n {
        wide.clear();
        read(table, column, &mut wide)?;
        for row in 0..rows {
            out[row * n + column] = x[row * k..][..k].iter().zip(&wide).map(|(x, w)| x * w).sum();
        }
    }
    Ok(out)
}

fn add_row(y: &mut [f64], row: &[f32]) {
    for y in y.chunks_exact_mut(row.len().max(1)) {
        y.iter_mut().zip(row).for_each(|(y, b)| *y += f64::from(*b));
    }
}
