//! Caller-owned storage that outlives steps, and the kernels that read and write it.

use graph::backend::{DeviceError, StateDesc};
use tensor::ops::KV_BLOCK;
use tensor::{DType, Shape};

use crate::memory::{HugeBuf, SharedSlice};
use crate::pool::Worker;
use crate::vector;

use super::memory_error;
use super::operand::RowsArg;
use super::steps::Ctx;

/// A state of any kind.
pub(super) struct CpuState {
    dtype: DType,
    shape: Shape,
    buffer: HugeBuf,
}

impl CpuState {
    pub(super) fn new(desc: &StateDesc) -> Result<CpuState, DeviceError> {
        let bytes = desc.shape.elements() * 4;
        let buffer =
            HugeBuf::zeroed(bytes).map_err(|e| memory_error(format!("state `{}`", desc.name), e.bytes))?;
        Ok(CpuState { dtype: desc.dtype, shape: desc.shape, buffer })
    }

    pub(super) fn fits(&self, dtype: DType, shape: Shape) -> bool {
        (self.dtype, self.shape) == (dtype, shape)
    }

    fn shared(&self) -> SharedSlice<'_, f32> {
        // SAFETY: the buffer lives as long as `self`; jobs run one at a time and their workers touch disjoint parts.
        unsafe { SharedSlice::from_raw(self.buffer.start().cast(), self.buffer.len() / 4) }
    }
}

/// [`tensor::Op::ShortConv`].
pub(super) struct ConvStep {
    pub(super) x: RowsArg,
    pub(super) weight: usize,
    pub(super) taps: usize,
    pub(super) state: usize,
    pub(super) pos: RowsArg,
    pub(super) extents: RowsArg,
    pub(super) slots: RowsArg,
    pub(super) snap: RowsArg,
    pub(super) out: RowsArg,
}

impl ConvStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let conv = vector::ShortConv {
            x: ctx.rows(&self.x),
            weight: ctx.weights[self.weight].elements(),
            bias: None,
            taps: self.taps,
            extents: ctx.words(&self.extents),
            slots: ctx.words(&self.slots),
            pos: ctx.words(&self.pos),
            snap: ctx.words(&self.snap),
        };
        let channels = worker.share(self.x.width, 64);
        if !channels.is_empty() {
            // SAFETY: these channels are this worker's own, and the step was validated: a sequence has its own slot.
            unsafe {
                vector::short_conv(
                    ctx.isa,
                    conv,
                    ctx.states[self.state].shared(),
                    channels,
                    ctx.rows_mut(&self.out),
                );
            }
        }
    }
}

/// [`tensor::Op::KvWrite`].
pub(super) struct KvWriteStep {
    pub(super) k: RowsArg,
    pub(super) v: RowsArg,
    pub(super) state: usize,
    pub(super) pos: RowsArg,
    pub(super) extents: RowsArg,
    pub(super) pages: RowsArg,
}

fn sequence_of_rows(extents: &[u32]) -> Vec<usize> {
    extents.iter().enumerate().flat_map(|(s, &n)| std::iter::repeat_n(s, n as usize)).collect()
}

impl KvWriteStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let (k, v, pos) = (ctx.rows(&self.k), ctx.rows(&self.v), ctx.words(&self.pos));
        let state = ctx.states[self.state].shared();
        let seq = sequence_of_rows(ctx.words(&self.extents));
        let pages = ctx.words(&self.pages);
        let width = k.dim() + v.dim();
        for row in worker.share(k.rows(), 1) {
            let p = pos[row] as usize;
            let block = pages[seq[row] * self.pages.width + p / KV_BLOCK] as usize;
            let at = (block * KV_BLOCK + p % KV_BLOCK) * width;
            // SAFETY: every row has a position of its own.
            let to = unsafe { state.part_mut(at..at + width) };
            to[..k.dim()].copy_from_slice(k.row(row));
            to[k.dim()..].copy_from_slice(v.row(row));
        }
    }
}

/// [`tensor::Op::Attention`].
pub(super) struct AttentionStep {
    pub(super) q: RowsArg,
    pub(super) heads: usize,
    pub(super) state: usize,
    pub(super) pos: RowsArg,
    pub(super) until: RowsArg,
    pub(super) extents: RowsArg,
    pub(super) pages: RowsArg,
    pub(super) scale: f32,
    pub(super) window: Option<u32>,
    pub(super) softcap: Option<f32>,
    pub(super) out: RowsArg,
}

impl AttentionStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let (q, out) = (ctx.rows(&self.q), ctx.rows_mut(&self.out));
        let (pos, until) = (ctx.words(&self.pos), ctx.words(&self.until));
        let state = ctx.states[self.state].shared();
        let kv_heads = ctx.states[self.state].shape.dims()[2];
        let seq = sequence_of_rows(ctx.words(&self.extents));
        let pages = ctx.words(&self.pages);
        let dk = q.dim() / self.heads;
        let dv = out.dim() / self.heads;
        let width = kv_heads * (dk + dv);
        for item in worker.share(q.rows() * self.heads, 1) {
            let (row, head) = (item / self.heads, item % self.heads);
            let kv = head / (self.heads / kv_heads);
            // SAFETY: this head of this row is this worker's own.
            let mut part = unsafe { out.alias() }.part(row..row + 1).columns(head * dv..(head + 1) * dv);
            let acc = part.row(0);
            acc.fill(0.0);
            let q = &q.row(row)[head * dk..(head + 1) * dk];
            let first = self.window.map_or(0, |w| (pos[row] + 1).saturating_sub(w)) as usize;
            let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
            for p in first..until[row] as usize {
                let block = pages[seq[row] * self.pages.width + p / KV_BLOCK] as usize;
                let at = (block * KV_BLOCK + p % KV_BLOCK) * width;
                // SAFETY: written by an earlier step.
                let kvs = unsafe { state.part(at..at + width) };
                let k = &kvs[kv * dk..(kv + 1) * dk];
                let v = &kvs[kv_heads * dk + kv * dv..][..dv];
                let mut score = 0.0f32;
                for (a, b) in q.iter().zip(k) {
                    score += a * b;
                }
                score *= self.scale;
                if let Some(cap) = self.softcap {
                    score = cap * (score / cap).tanh();
                }
                let new = max.max(score);
                let (old, w) = ((max - new).exp(), (score - new).exp());
                max = new;
                sum = sum * old + w;
                for (a, b) in acc.iter_mut().zip(v) {
                    *a = *a * old + w * b;
                }
            }
            if sum > 0.0 {
                acc.iter_mut().for_each(|a| *a /= sum);
            }
        }
    }
}
