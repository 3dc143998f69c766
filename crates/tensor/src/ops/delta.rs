//! The gated delta rule: linear attention whose state is corrected before it is added to (Yang, Kautz and Hatamizadeh,
//! *Gated Delta Networks*, 2025).

use super::reference::{Bounds, FLUSH, ReferenceError, UNIT, bad_value, rounded, sequence_of_rows, wide};
use super::{Check, NO_SNAP, Op, Operand, OperandError, result};
use crate::{DType, HostTensor};

pub(super) fn infer(c: &Check) -> Result<Vec<Operand>, OperandError> {
    let q = c.ranked(0, DType::F32, 3)?;
    if q[1] == 0 || q[2] == 0 {
        return c.fail(0, format!("has shape {}, must have heads with elements", c.shape(0)));
    }
    c.exactly(1, DType::F32, q)?;
    let v = c.ranked(2, DType::F32, 3)?;
    if v[0] != q[0] || v[1] == 0 || v[2] == 0 || !v[1].is_multiple_of(q[1]) {
        let problem = format!(
            "has shape {}, must be [{}, a multiple of {} heads, width of a value]",
            c.shape(2),
            q[0],
            q[1]
        );
        return c.fail(2, problem);
    }
    c.exactly(3, DType::F32, &v[..2])?;
    c.exactly(4, DType::F32, &v[..2])?;
    let state = c.ranked(5, DType::F32, 4)?;
    if state[1..] != [v[1], q[2], v[2]] {
        let problem = format!("has shape {}, must be [slots, {}, {}, {}]", c.shape(5), v[1], q[2], v[2]);
        return c.fail(5, problem);
    }
    c.exactly(6, DType::U32, &q[..1])?;
    let seqs = c.ranked(7, DType::U32, 1)?[0];
    c.exactly(8, DType::U32, &[seqs])?;
    c.exactly(9, DType::U32, &q[..1])?;
    Ok(vec![result(DType::F32, v)])
}

pub(super) fn reference(op: &Op, args: &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    let y = walk(op, args)?.into_iter().map(|(y, _)| y).collect::<Vec<_>>();
    Ok(vec![rounded(args[2].dims(), &y)?])
}

/// A step multiplies a column of the state by `decay (I - beta k k^T)`, whose norm is at most that of its factors because
/// keys are of unit length, and rounds: so an error grows by what is rounded and not with itself, and in the Euclidean norm
/// of a column everything can be followed. A state that earlier steps left carries their rounding: it is taken to be that of
/// as many rows as came before, of its present size.
pub(super) fn bounds(op: &Op, args: &[HostTensor]) -> Result<Bounds, ReferenceError> {
    Ok(vec![walk(op, &mut args.to_vec())?.into_iter().map(|(_, bound)| bound).collect()])
}

/// Of each row, one head: decay, beta, the unit key, the unit query times the scale, and the value.
struct Row<'a> {
    decay: f64,
    /// Its logarithm as the operand says it.
    log_decay: f64,
    beta: f64,
    k: Vec<f64>,
    q: Vec<f64>,
    v: &'a [f64],
}

fn unit(x: &[f64], eps: f32, scale: f64) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(eps)).sqrt();
    x.iter().map(|x| x / length * scale).collect()
}

/// The state of one head `[dk, dv]`, and for each column how far a kernel's may lie from it (Euclidean norm).
#[derive(Clone)]
struct State {
    s: Vec<f64>,
    off: Vec<f64>,
}

impl State {
    fn column_norms(&self) -> Vec<f64> {
        let mut squares = vec![0.0; self.off.len()];
        for row in self.s.chunks_exact(self.off.len()) {
            squares.iter_mut().zip(row).for_each(|(sum, s)| *sum += s * s);
        }
        squares.iter().map(|s: &f64| s.sqrt()).collect()
    }

    /// Goes on by a row; gives its results and their bounds.
    fn step(&mut self, row: &Row) -> Vec<(f64, f64)> {
        let (dk, dv) = (row.k.len(), self.off.len());
        let before = self.column_norms();
        let mut recalled = vec![0.0; dv];
        for (s, k) in self.s.chunks_exact_mut(dv).zip(&row.k) {
            for (s, recalled) in s.iter_mut().zip(&mut recalled) {
                *s *= row.decay;
                *recalled += k * *s;
            }
        }
        let delta: Vec<f64> = row.v.iter().zip(&recalled).map(|(v, r)| (v - r) * row.beta).collect();
        let mut y = vec![0.0; dv];
        for (s, (k, q)) in self.s.chunks_exact_mut(dv).zip(row.k.iter().zip(&row.q)) {
            for j in 0..dv {
                s[j] += k * delta[j];
                y[j] += q * s[j];
            }
        }
        let (terms, flushed) = (3.0 * dk as f64 + 32.0, dk as f64 * FLUSH);
        let length = row.q.iter().map(|q| q * q).sum::<f64>().sqrt();
        let after = self.column_norms();
        let spread = row.decay * f64::max(1.0, (1.0 - row.beta).abs());
        let mut results = Vec::with_capacity(dv);
        for j in 0..dv {
            let kept = row.decay * before[j];
            let added = kept + row.beta.abs() * (row.v[j].abs() + kept);
            self.off[j] = spread * self.off[j] + (terms + row.log_decay.abs()) * UNIT * added + 4.0 * flushed;
            results.push((y[j], length * (self.off[j] + terms * UNIT * after[j]) + flushed));
        }
        results
    }
}

/// The results, each with how far a kernel's may lie from it; the state is updated.
fn walk(op: &Op, args: &mut [HostTensor]) -> Result<Vec<(f64, f64)>, ReferenceError> {
    let Op::GatedDeltaRule { scale, eps } = *op else { unreachable!("the only op of this family") };
    let (rows, key_heads, dk) = (args[0].dims()[0], args[0].dims()[1], args[0].dims()[2]);
    let (heads, dv, slot_count) = (args[2].dims()[1], args[2].dims()[2], args[5].dims()[0]);
    let sequences = sequence_of_rows(op, 7, &args[7], rows)?;
    let [q, k, v, log_decay, beta] = [0, 1, 2, 3, 4].map(|i| wide(&args[i]));
    let (q, k, v, log_decay, beta) = (q?, k?, v?, log_decay?, beta?);
    let [.., state, pos, _, slots, snap] = args else { unreachable!("ten operands were checked") };
    let (pos, slots, snap) = (pos.u32s()?, slots.u32s()?, snap.u32s()?);
    // Every segment reads the slots as they were before the step, whatever order the segments run in.
    let before = wide(state)?;
    let size = dk * dv;
    let mut out = vec![(0.0, 0.0); rows * heads * dv];
    let mut current: Vec<State> = vec![];
    for r in 0..rows {
        let Some(sequence) = sequences[r] else { break };
        if r == 0 || sequences[r - 1] != Some(sequence) {
            let slot = slots[sequence] as usize;
            if pos[r] > 0 && slot >= slot_count {
                return bad_value(op, 8, format!("sequence {sequence} reads slot {slot} of {slot_count}"));
            }
            current = (0..heads)
                .map(|head| match pos[r] {
                    0 => State { s: vec![0.0; size], off: vec![0.0; dv] },
                    rows => {
                        let s = before[(slot * heads + head) * size..][..size].to_vec();
                        let mut state = State { s, off: vec![0.0; dv] };
                        let largest = state.column_norms().into_iter().fold(0.0, f64::max);
                        let row = (3.0 * dk as f64 + 32.0) * UNIT * largest + 4.0 * dk as f64 * FLUSH;
                        state.off.fill(f64::from(rows) * row);
                        state
                    }
                })
                .collect();
        }
        for (head, state) in current.iter_mut().enumerate() {
            let (at, key) = (r * heads + head, r * key_heads + head / (heads / key_heads));
            let row = Row {
                decay: log_decay[at].exp(),
                log_decay: log_decay[at],
                beta: beta[at],
                k: unit(&k[key * dk..][..dk], eps, 1.0),
                q: unit(&q[key * dk..][..dk], eps, f64::from(scale)),
                v: &v[at * dv..][..dv],
            };
            out[at * dv..][..dv].copy_from_slice(&state.step(&row));
        }
        if snap[r] != NO_SNAP {
            let slot = snap[r] as usize;
            if slot >= slot_count {
                return bad_value(op, 9, format!("row {r} stores slot {slot} of {slot_count}"));
            }
            let kept = current.iter().flat_map(|state| &state.s).map(|s| *s as f32);
            let place = &mut state.f32s_mut()?[slot * heads * size..][..heads * size];
            place.iter_mut().zip(kept).for_each(|(place, s)| *place = s);
        }
    }
    Ok(out)
}
