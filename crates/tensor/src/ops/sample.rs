//! Drawing tokens on the device, and feeding them back.

use super::reference::{ReferenceError, bad_value};
use super::{Check, Op, Operand, OperandError, result};
use crate::sampling::{ONE, ordered, part, part_up, weight};
use crate::{DType, HostTensor};

/// Marks an entry of ids that is not a token: for [`Op::Feed`] the slot whose last drawn token it stands for, among the
/// results of [`Op::Sample`] a row that was refused.
pub const NOT_A_TOKEN: u32 = 1 << 31;

/// The result of [`Op::Sample`] for a row that draws nothing, and for one in which every logit is -inf.
pub const NO_TOKEN: u32 = u32::MAX;

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    if matches!(op, Op::Feed) {
        let rows = c.ranked(0, DType::U32, 1)?[0];
        c.ranked(1, DType::U32, 1)?;
        return Ok(vec![result(DType::U32, &[rows])]);
    }
    let logits = c.ranked(0, DType::F32, 2)?;
    if logits[1] == 0 || logits[1] >= NOT_A_TOKEN as usize {
        return c.fail(0, format!("has {} tokens, must have from 1 to 2^31 - 1", logits[1]));
    }
    c.ranked(1, DType::U32, 1)?;
    for i in 2..8 {
        c.exactly(i, if i == 4 { DType::F32 } else { DType::U32 }, &logits[..1])?;
    }
    Ok(vec![result(DType::U32, &logits[..1])])
}

pub(super) fn reference(op: &Op, args: &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    if matches!(op, Op::Feed) { feed(args) } else { sample(args) }
}

fn feed(args: &[HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    let (ids, drawn) = (args[0].u32s()?, args[1].u32s()?);
    let mut out = Vec::with_capacity(ids.len());
    for (row, id) in ids.iter().enumerate() {
        out.push(match id & NOT_A_TOKEN {
            0 => *id,
            _ => match drawn.get((id ^ NOT_A_TOKEN) as usize) {
                Some(token) => *token,
                None => {
                    let problem = format!("row {row} takes slot {} of {}", id ^ NOT_A_TOKEN, drawn.len());
                    return bad_value(&Op::Feed, 0, problem);
                }
            },
        });
    }
    Ok(vec![HostTensor::from_u32(args[0].dims(), &out)?])
}

fn sample(args: &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    let [logits, drawn, into, uniform, sharpness, top_k, top_p, min_p] = args else {
        unreachable!("eight operands were checked")
    };
    let (into, uniform, sharpness) = (into.u32s()?, uniform.u32s()?, sharpness.f32s()?);
    let (top_k, top_p, min_p) = (top_k.u32s()?, top_p.u32s()?, min_p.u32s()?);
    let slots = drawn.dims()[0];
    let vocab = logits.dims()[1];
    let mut tokens = Vec::with_capacity(into.len());
    let mut stores = vec![];
    for (r, row) in logits.f32s()?.chunks_exact(vocab).enumerate() {
        if into[r] == super::NO_SNAP {
            tokens.push(NO_TOKEN);
            continue;
        }
        let token = match row.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            Some(at) => NOT_A_TOKEN | at as u32,
            None => choose(row, uniform[r], sharpness[r], top_k[r], top_p[r], min_p[r]),
        };
        if into[r] as usize >= slots {
            return bad_value(&Op::Sample, 2, format!("row {r} stores slot {} of {slots}", into[r]));
        }
        tokens.push(token);
        stores.push((into[r], token));
    }
    // Stored as U32, which the host tensor gives out as bytes.
    for (slot, token) in stores {
        drawn.bytes_mut()[4 * slot as usize..][..4].copy_from_slice(&token.to_le_bytes());
    }
    Ok(vec![HostTensor::from_u32(&[tokens.len()], &tokens)?])
}

/// By the words of the op: sort all, cut three times, draw in order of id.
fn choose(row: &[f32], uniform: u32, sharpness: f32, top_k: u32, top_p: u32, min_p: u32) -> u32 {
    let mut order: Vec<usize> = (0..row.len()).filter(|i| row[*i] > f32::NEG_INFINITY).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(ordered(row[*i])), *i));
    let Some(first) = order.first() else { return NO_TOKEN };
    let max = row[*first];
    let weigh = |i: usize| u64::from(weight(row[i], max, sharpness));
    if top_k > 0 {
        order.truncate(top_k as usize);
    }
    if top_p > 0 {
        let wanted = part_up(order.iter().map(|i| weigh(*i)).sum(), top_p);
        let mut sum = 0;
        let short = |i: &&usize| {
            let before = sum;
            sum += weigh(**i);
            before < wanted
        };
        let kept = order.iter().take_while(short).count();
        order.truncate(kept);
    }
    order.retain(|i| weigh(*i) >= u64::from(min_p.min(ONE)));
    order.sort_unstable();
    let target = part(order.iter().map(|i| weigh(*i)).sum(), uniform);
    let mut sum = 0;
    let drawn = order.iter().find(|i| {
        sum += weigh(**i);
        sum > target
    });
    drawn.map_or(NO_TOKEN, |i| *i as u32)
}
