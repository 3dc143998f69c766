//! Ops that carry a state from row to row.

use super::reference::{
    Bounds, FLUSH, ReferenceError, UNIT, bad_value, magnitude, rounded, sequence_of_rows, wide,
};
use super::{Check, NO_SNAP, Op, Operand, OperandError, result};
use crate::{DType, HostTensor};

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

pub(super) fn reference(args: &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    let y = short_conv(args)?;
    Ok(vec![rounded(args[0].dims(), &y)?])
}

pub(super) fn bounds(args: &[HostTensor]) -> Result<Bounds, ReferenceError> {
    let mut sizes = args.to_vec();
    for i in 0..3 {
        sizes[i] = magnitude(&args[i])?;
    }
    let taps = args[1].dims()[1] as f64;
    Ok(vec![short_conv(&mut sizes)?.iter().map(|s| (taps + 1.0) * (UNIT * s + FLUSH)).collect()])
}

fn short_conv(args: &mut [HostTensor]) -> Result<Vec<f64>, ReferenceError> {
    let op = &Op::ShortConv;
    let (dim, taps, slot_count) = (args[0].dims()[1], args[1].dims()[1], args[2].dims()[0]);
    let rows = args[0].dims()[0];
    let sequences = sequence_of_rows(op, 4, &args[4], rows)?;
    let [x, w, ring, pos, _, slots, snap] = args else { unreachable!("seven operands were checked") };
    let (x, w) = (x.f32s()?, wide(w)?);
    let (pos, slots, snap) = (pos.u32s()?, slots.u32s()?, snap.u32s()?);
    // Every segment reads the slots as they were before the step, whatever order the segments run in.
    let before = ring.f32s()?.to_vec();
    let state_len = (taps - 1) * dim;
    let mut out = vec![0.0; rows * dim];
    let mut history: Vec<f32> = vec![];
    for r in 0..rows {
        let Some(sequence) = sequences[r] else { break };
        if r == 0 || sequences[r - 1] != Some(sequence) {
            let slot = slots[sequence] as usize;
            history = match pos[r] {
                0 => vec![0.0; state_len],
                _ if slot < slot_count => before[slot * state_len..][..state_len].to_vec(),
                _ => {
                    return bad_value(
                        op,
                        5,
                        format!("sequence {sequence} reads slot {slot} of {slot_count}"),
                    );
                }
            };
        }
        history.extend_from_slice(&x[r * dim..][..dim]);
        for d in 0..dim {
            out[r * dim + d] = (0..taps).map(|j| w[d * taps + j] * f64::from(history[j * dim + d])).sum();
        }
        history.drain(..dim);
        if snap[r] != NO_SNAP {
            let slot = snap[r] as usize;
            if slot >= slot_count {
                return bad_value(op, 6, format!("row {r} stores slot {slot} of {slot_count}"));
            }
            ring.f32s_mut()?[slot * state_len..][..state_len].copy_from_slice(&history);
        }
    }
    Ok(out)
}
