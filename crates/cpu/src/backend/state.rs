//! Caller-owned storage that outlives steps, and the kernels that read and write it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use graph::backend::{DeviceError, StateDesc};
use tensor::ops::KV_BLOCK;
use tensor::{DType, Shape};

use crate::attention::{
    Attention, AttentionOut, KvLayout, KvPool, KvType, KvWrite, PageTable, attention as attend, kv_write,
};
use crate::memory::{HugeBuf, SharedSlice, Slabs};
use crate::pool::Worker;
use crate::quant::BLOCK;
use crate::vector;

use super::operand::RowsArg;
use super::steps::Ctx;
use super::{Shared, memory_error};

/// Where all states lie.
static SLABS: Slabs = Slabs::new();

/// A state of any kind.
pub(super) struct CpuState {
    pub(super) name: String,
    dtype: DType,
    shape: Shape,
    buffer: HugeBuf,
    /// Elements of a key, once a plan that uses the state as a KV cache is bound to it.
    k_dim: OnceLock<usize>,
    /// The backend it belongs to, whose jobs run one at a time.
    owner: Arc<Shared>,
}

/// The layout of a KV cache state `[blocks, 16, heads, k_dim + v_dim]`; `None` when it is not the shape of one.
pub(super) fn kv_layout(dtype: DType, shape: Shape, k_dim: usize) -> Option<KvLayout> {
    let [_, KV_BLOCK, heads, both] = *shape.dims() else { return None };
    let kind = KvType::of(dtype)?;
    (heads > 0 && k_dim > 0 && both > k_dim).then(|| KvLayout::new(kind, heads, k_dim, both - k_dim))
}

/// A state as a plan uses it.
#[derive(Clone)]
pub(super) struct StateInfo {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    /// Elements of a key, where it is a KV cache.
    pub(super) k_dim: Option<usize>,
}

impl CpuState {
    pub(super) fn new(owner: Arc<Shared>, desc: &StateDesc) -> Result<CpuState, DeviceError> {
        // How much a cache takes does not depend on the width of its keys.
        let words = match kv_layout(desc.dtype, desc.shape, 1) {
            Some(layout) => layout.pool_words(desc.shape.dims()[0]),
            None => Some(desc.shape.elements()),
        };
        let what = || format!("state `{}`", desc.name);
        let bytes =
            words.and_then(|words| words.checked_mul(4)).ok_or_else(|| memory_error(what(), usize::MAX))?;
        let buffer = SLABS.zeroed(bytes).map_err(|e| memory_error(what(), e.bytes))?;
        let name = desc.name.clone();
        Ok(CpuState { name, dtype: desc.dtype, shape: desc.shape, buffer, k_dim: OnceLock::new(), owner })
    }

    /// Whether this is the state that a plan of `owner` describes. The first plan that says how wide keys are decides it
    /// for all: where a key ends is part of the layout.
    pub(super) fn fits(&self, owner: &Arc<Shared>, want: &StateInfo) -> bool {
        Arc::ptr_eq(&self.owner, owner)
            && (self.dtype, self.shape) == (want.dtype, want.shape)
            && want.k_dim.is_none_or(|k_dim| *self.k_dim.get_or_init(|| k_dim) == k_dim)
    }

    /// Whether it belongs to a backend.
    pub(super) fn is_of(&self, owner: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }

    /// Entries of the first axis.
    pub(super) fn entries(&self) -> usize {
        self.shape.dims().first().copied().unwrap_or(0)
    }

    /// Words of an entry; they lie one after another.
    pub(super) fn entry_words(&self) -> usize {
        match kv_layout(self.dtype, self.shape, 1) {
            Some(layout) => layout.block_words(),
            None => self.shape.elements().checked_div(self.entries()).unwrap_or(0),
        }
    }

    pub(super) fn shared(&self) -> SharedSlice<'_, f32> {
        // SAFETY: the buffer lives as long as `self`; jobs run one at a time and their workers touch disjoint parts.
        unsafe { SharedSlice::from_raw(self.buffer.start().cast(), self.buffer.len() / 4) }
    }

    /// The elements of a u32 state.
    pub(super) fn words(&self) -> SharedSlice<'_, u32> {
        // SAFETY: as for `shared`.
        unsafe { SharedSlice::from_raw(self.buffer.start().cast(), self.buffer.len() / 4) }
    }

    fn pool(&self, layout: KvLayout) -> KvPool<'_> {
        KvPool::new(layout, self.shared())
    }
}

/// [`vector::Segments`] of a step.
pub(super) struct SegmentsArg {
    pub(super) pos: RowsArg,
    pub(super) extents: RowsArg,
    pub(super) slots: RowsArg,
    pub(super) snap: RowsArg,
}

impl SegmentsArg {
    fn of<'a>(&self, ctx: &'a Ctx) -> vector::Segments<'a> {
        let [extents, slots, pos, snap] =
            [&self.extents, &self.slots, &self.pos, &self.snap].map(|arg| ctx.words(arg));
        vector::Segments { extents, slots, pos, snap }
    }
}

/// [`tensor::Op::ShortConv`].
pub(super) struct ConvStep {
    pub(super) x: RowsArg,
    pub(super) weight: usize,
    pub(super) taps: usize,
    pub(super) state: usize,
    pub(super) segments: SegmentsArg,
    pub(super) out: RowsArg,
}

impl ConvStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let conv = vector::ShortConv {
            x: ctx.rows(&self.x),
            weight: ctx.weights[self.weight].elements(),
            taps: self.taps,
            segments: self.segments.of(ctx),
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

/// [`tensor::Op::GatedDeltaRule`].
pub(super) struct DeltaStep {
    /// Rows of all heads.
    pub(super) q: RowsArg,
    pub(super) k: RowsArg,
    pub(super) v: RowsArg,
    pub(super) log_decay: RowsArg,
    pub(super) beta: RowsArg,
    /// Elements of a key and of a value.
    pub(super) dims: [usize; 2],
    pub(super) scale: f32,
    pub(super) eps: f32,
    pub(super) state: usize,
    pub(super) segments: SegmentsArg,
    pub(super) out: RowsArg,
}

impl DeltaStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let [dk, dv] = self.dims;
        let rule = vector::DeltaRule {
            q: ctx.rows(&self.q),
            k: ctx.rows(&self.k),
            v: ctx.rows(&self.v),
            log_decay: ctx.rows(&self.log_decay),
            beta: ctx.rows(&self.beta),
            dk,
            dv,
            scale: self.scale,
            eps: self.eps,
            segments: self.segments.of(ctx),
        };
        let parts = worker.share(rule.parts(), 1);
        if !parts.is_empty() {
            // SAFETY: these columns are this worker's own, and the step was validated: a sequence has its own slot.
            unsafe {
                vector::delta_rule(
                    ctx.isa,
                    rule,
                    ctx.states[self.state].shared(),
                    parts,
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
    pub(super) layout: KvLayout,
    pub(super) pos: RowsArg,
    pub(super) pages: RowsArg,
}

impl KvWriteStep {
    /// Some rows and columns of the keys, whole heads: this worker's own, and so their values.
    pub(super) fn part(&self, ctx: &Ctx, rows: Range<usize>, columns: Range<usize>) {
        let write = KvWrite {
            k: ctx.rows(&self.k),
            v: ctx.rows(&self.v),
            kv: ctx.states[self.state].pool(self.layout),
            seq: ctx.seq,
            pos: ctx.words(&self.pos),
            pages: PageTable { pages: ctx.words(&self.pages), per_seq: self.pages.width },
        };
        let k_dim = self.layout.k_dim();
        let heads = columns.start / k_dim..columns.end / k_dim;
        // SAFETY: these rows of these heads are this worker's own; the positions of a step differ, as the engine gives each
        // sequence blocks of its own.
        unsafe { kv_write(ctx.isa, &write, rows, heads) };
    }
}

/// [`tensor::Op::Attention`].
pub(super) struct AttentionStep {
    pub(super) q: RowsArg,
    pub(super) heads: usize,
    pub(super) state: usize,
    pub(super) layout: KvLayout,
    pub(super) pos: RowsArg,
    pub(super) until: RowsArg,
    pub(super) pages: RowsArg,
    pub(super) scale: f32,
    pub(super) window: Option<u32>,
    pub(super) softcap: Option<f32>,
    /// Scratch for keys divided over workers: first word in the arena, and words.
    pub(super) partials: (usize, usize),
    pub(super) out: RowsArg,
    /// Where blocks of the output go, if products follow that take them: a word of the arena.
    pub(super) blocks: Option<usize>,
}

impl AttentionStep {
    pub(super) fn run(&self, ctx: &Ctx, worker: &Worker<'_>) {
        let attention = Attention {
            q: ctx.rows(&self.q),
            kv: ctx.states[self.state].pool(self.layout),
            heads: self.heads,
            seq: ctx.seq,
            pos: ctx.words(&self.pos),
            until: ctx.words(&self.until),
            pages: PageTable { pages: ctx.words(&self.pages), per_seq: self.pages.width },
            window: self.window,
            scale: self.scale,
            softcap: self.softcap,
        };
        // SAFETY: scratch behind the intermediates that only this step uses until the barrier.
        let partials =
            unsafe { SharedSlice::from_raw(ctx.arena.add(self.partials.0).cast(), self.partials.1) };
        let rows = ctx.rows_mut(&self.out);
        let blocks = self.blocks.map(|at| {
            let start = ctx.arena.wrapping_add(at).cast();
            // SAFETY: as for `partials`, for blocks of all rows of a bucket; the step itself divides them.
            unsafe { SharedSlice::from_raw(start, rows.rows() * rows.dim() / BLOCK) }
        });
        // SAFETY: barriers lie around this step, and nothing else touches queries, cache or output meanwhile.
        unsafe { attend(ctx.isa, &attention, worker, partials, &AttentionOut { rows, blocks }) };
    }
}
