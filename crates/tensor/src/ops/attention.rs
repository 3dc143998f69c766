//! The paged KV cache and attention over it (running softmax: Milakov and Gimelshein, 2018).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use half::{bf16, f16};

use super::kv_cache::{KV_SCALED, KvType, q8_block};
use super::reference::{Bounds, FLUSH, ReferenceError, UNIT, bad_value, rounded, sequence_of_rows};
use super::{Check, KV_BLOCK, Op, Operand, OperandError, result};
use crate::{DType, HostTensor};

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    let write = matches!(op, Op::KvWrite);
    let cache = if write { 2 } else { 1 };
    if KvType::of(c.dtype(cache)).is_none() {
        return c.fail(cache, format!("is {}, a KV cache is F32, F16 or Q8_0", c.dtype(cache)));
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

pub(super) fn reference(op: &Op, args: &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    if matches!(op, Op::KvWrite) {
        kv_write(args)?;
        return Ok(vec![]);
    }
    let dims = [args[0].dims()[0], args[0].dims()[1], args[1].dims()[3] - args[0].dims()[2]];
    Ok(vec![rounded(&dims, &attend(op, args)?.0)?])
}

pub(super) fn bounds(op: &Op, args: &[HostTensor]) -> Result<Bounds, ReferenceError> {
    if matches!(op, Op::KvWrite) { Ok(vec![]) } else { Ok(vec![attend(op, args)?.1]) }
}

/// Where position `at` of a sequence lies in the cache, as an index of blocks times [`KV_BLOCK`] plus the place within.
fn place(
    op: &Op,
    cache: &HostTensor,
    pages: &HostTensor,
    sequence: usize,
    at: usize,
) -> Result<usize, ReferenceError> {
    let operand = op.roles().len() - 1;
    let (blocks, width) = (cache.dims()[0], pages.dims()[1]);
    let entry = at / KV_BLOCK;
    if entry >= width {
        let problem =
            format!("position {at} of sequence {sequence} is in block {entry}, its table has {width}");
        return bad_value(op, operand, problem);
    }
    let block = pages.u32s()?[sequence * width + entry] as usize;
    if block >= blocks {
        let problem = format!("sequence {sequence} uses block {block}, the cache has {blocks}");
        return bad_value(op, operand, problem);
    }
    Ok(block * KV_BLOCK + at % KV_BLOCK)
}

fn kv_write(args: &mut [HostTensor]) -> Result<(), ReferenceError> {
    let op = &Op::KvWrite;
    let [k, v, cache, pos, extents, pages] = args else { unreachable!("six operands were checked") };
    let (heads, dk, dv) = (k.dims()[1], k.dims()[2], v.dims()[2]);
    let (k, v) = (k.f32s()?, v.f32s()?);
    for (r, sequence) in sequence_of_rows(op, 4, extents, pos.dims()[0])?.into_iter().enumerate() {
        let Some(sequence) = sequence else { break };
        let at = place(op, cache, pages, sequence, pos.u32s()?[r] as usize)?;
        for head in 0..heads {
            let row = r * heads + head;
            let (k, v) = (&k[row * dk..][..dk], &v[row * dv..][..dv]);
            let dtype = cache.dtype();
            store(dtype, cache.row_bytes_mut(at * heads + head)?, k, v);
        }
    }
    Ok(())
}

/// Stores a key and a value in a row of a cache.
fn store(dtype: DType, row: &mut [u8], k: &[f32], v: &[f32]) {
    let values = k.iter().chain(v);
    match KvType::of(dtype) {
        Some(KvType::F32) => {
            row.chunks_exact_mut(4).zip(values).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()))
        }
        Some(KvType::F16) => {
            row.chunks_exact_mut(2)
                .zip(values)
                .for_each(|(to, x)| to.copy_from_slice(&f16::from_f32(*x).to_le_bytes()));
        }
        Some(KvType::Q8_0) => {
            let blocks = k.chunks(KV_SCALED).chain(v.chunks(KV_SCALED));
            for (to, x) in row.chunks_exact_mut(dtype.block_bytes()).zip(blocks) {
                let (scale, codes) = to.split_at_mut(2);
                scale.copy_from_slice(
                    &q8_block(x, bytemuck::cast_slice_mut(&mut codes[..x.len()])).to_le_bytes(),
                );
            }
        }
        None => unreachable!("the type of the cache was checked"),
    }
}

/// Decodes what lies in a row of a cache: a key of `dk` elements and a value of the others.
fn load(cache: &HostTensor, row: usize, dk: usize, kv: &mut [f32]) -> Result<(), ReferenceError> {
    if cache.dtype() != DType::Q8_0 {
        return Ok(cache.decode_row(row, kv)?);
    }
    let (k, v) = kv.split_at_mut(dk);
    let blocks = k.chunks_mut(KV_SCALED).chain(v.chunks_mut(KV_SCALED));
    for (to, from) in blocks.zip(cache.row_bytes(row)?.chunks_exact(DType::Q8_0.block_bytes())) {
        let (scale, codes) = from.split_at(2);
        let scale = bf16::from_le_bytes([scale[0], scale[1]]).to_f32();
        to.iter_mut().zip(codes).for_each(|(to, code)| *to = scale * f32::from(*code as i8));
    }
    Ok(())
}

/// Half the spacing of binary16's subnormals, 2^-25.
const HALF_SUBNORMAL: f64 = 1.0 / (1u64 << 25) as f64;

/// The result `[R, Hq, Dv]` and its bound, not rounded.
///
/// The bound: a score is off by its products' rounding, `(Dk + 4)` units of the sum of their magnitudes, and by a few
/// units of itself; exponentials turn that into a relative error of every probability, the same sum of n terms divides
/// them, and n products with v are added. A binary16 cache may keep small values better than binary16's subnormals do
/// (by scaling rows), so each of its elements may differ by half their spacing.
fn attend(op: &Op, args: &[HostTensor]) -> Result<(Vec<f64>, Vec<f64>), ReferenceError> {
    let Op::Attention { scale, window, softcap } = op else { unreachable!("not attention") };
    let [q, cache, pos, until, extents, pages] = args else { unreachable!("six operands were checked") };
    let (rows, query_heads, dk) = (q.dims()[0], q.dims()[1], q.dims()[2]);
    let (kv_heads, kv_width) = (cache.dims()[2], cache.dims()[3]);
    let dv = kv_width - dk;
    let group = query_heads / kv_heads;
    let (q, pos, until) = (q.f32s()?, pos.u32s()?, until.u32s()?);
    let mut out = vec![0.0; rows * query_heads * dv];
    let mut bounds = vec![0.0; out.len()];
    let subnormal = if cache.dtype() == DType::F16 { HALF_SUBNORMAL } else { 0.0 };
    // The visible positions of the current sequence, decoded once: all KV heads of one after the other.
    let mut decoded: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    let mut current = None;
    for (r, sequence) in sequence_of_rows(op, 4, extents, rows)?.into_iter().enumerate() {
        let Some(sequence) = sequence else { break };
        if current.replace(sequence) != Some(sequence) {
            decoded.clear();
        }
        let past = pos[r] as usize + 1;
        let first = window.map_or(0, |w| past.saturating_sub(w as usize));
        let visible = first..until[r] as usize;
        if visible.is_empty() {
            continue;
        }
        for at in visible.clone() {
            if let Entry::Vacant(entry) = decoded.entry(at) {
                let place = place(op, cache, pages, sequence, at)?;
                let kv = entry.insert(vec![0.0; kv_heads * kv_width]);
                for (head, kv) in kv.chunks_exact_mut(kv_width).enumerate() {
                    load(cache, place * kv_heads + head, dk, kv)?;
                }
            }
        }
        let keys: Vec<&[f32]> = decoded.range(visible).map(|(_, kv)| &kv[..]).collect();
        for head in 0..query_heads {
            let query = &q[(r * query_heads + head) * dk..][..dk];
            let mut scores = Vec::with_capacity(keys.len());
            let mut error = 0f64;
            for kv in &keys {
                let key = &kv[head / group * kv_width..][..dk];
                let terms = || query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
                let mut score = terms().sum::<f64>() * f64::from(*scale);
                let sizes = terms().map(f64::abs).sum::<f64>() * f64::from(scale.abs());
                let coarse = query.iter().map(|q| f64::from(q.abs())).sum::<f64>() * f64::from(scale.abs());
                error = error.max((dk as f64 + 4.0) * UNIT * sizes + subnormal * coarse);
                if let Some(cap) = softcap.map(f64::from) {
                    score = cap * (score / cap).tanh();
                }
                scores.push(score);
            }
            let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let largest = scores.iter().fold(0.0f64, |m, s| m.max(s.abs()));
            // The cap's slope is at most 1, and its own error a few units of the cap. A difference of two scores is off
            // by both, and by its own rounding.
            let error = error + softcap.map_or(0.0, |cap| 8.0 * UNIT * f64::from(cap.abs()));
            let relative = 2.0 * (error + 2.0 * UNIT * largest) + 2.0 * (keys.len() as f64 + 8.0) * UNIT;
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            let result = (r * query_heads + head) * dv;
            for (kv, score) in keys.iter().zip(&scores) {
                let value = &kv[head / group * kv_width + dk..][..dv];
                let p = (score - top).exp() / sum;
                for (d, v) in value.iter().enumerate() {
                    out[result + d] += p * f64::from(*v);
                    bounds[result + d] += p * f64::from(v.abs());
                }
            }
            for bound in &mut bounds[result..][..dv] {
                *bound = relative.exp_m1() * *bound + FLUSH * keys.len() as f64 + subnormal;
            }
        }
    }
    Ok((out, bounds))
}
