//! Attention of a tile of rows for one kv head.

use super::keys::{Blocks, Element, KeyGroup, MAX_QUERIES, Softmax};
use super::{Attention, AttentionOut, BLOCK, BLOCKS, GROUP, KvType, SPLIT};
use crate::isa::{Isa, Kernel};
use crate::memory::SharedSlice;
use crate::quant::{ActBlock, quantise};
use crate::vector::lanes::V;
use bytemuck::Zeroable;
use std::cell::Cell;
use std::ops::Range;

/// Rows of a tile at most.
pub(super) const MAX_ROWS: usize = 64;
/// With this many register tiles it pays to widen a group of keys and values once for all of them.
const WIDEN_FROM: usize = 3;

/// A tile: rows of one sequence, for the query heads of one kv head.
pub(super) struct Tile<'a, 'b> {
    pub(super) attention: &'b Attention<'a>,
    pub(super) rows: Range<usize>,
    pub(super) kv_head: usize,
    pub(super) target: Target<'a, 'b>,
}

/// What a tile computes and where that goes.
pub(super) enum Target<'a, 'b> {
    /// Everything, into the output.
    Output(&'b AttentionOut<'a>),
    /// One split, into a partial softmax for each query.
    Split(usize, SharedSlice<'b, f32>),
    /// Consecutive splits that were computed before, in order.
    Merge(Merge<'a, 'b>),
}

/// Splits to be merged.
pub(super) struct Merge<'a, 'b> {
    /// How many.
    pub(super) splits: usize,
    /// Their partial softmaxes, one split after another.
    pub(super) partials: SharedSlice<'b, f32>,
    /// The softmaxes of the splits before them, merged.
    pub(super) before: Option<SharedSlice<'b, f32>>,
    /// Where the softmaxes merged so far go when there are more splits to come; with none, the output is complete.
    pub(super) after: Option<SharedSlice<'b, f32>>,
    pub(super) out: &'b AttentionOut<'a>,
}

thread_local! {
    /// Working memory, kept from call to call.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl Kernel for Tile<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        // Taken out and put back: vector code in a closure would be compiled without the features.
        let mut scratch = SCRATCH.take();
        match self.attention.kv.layout().kind() {
            KvType::F32 => self.compute::<S, f32>(s, &mut scratch),
            KvType::F16 => self.compute::<S, u16>(s, &mut scratch),
            KvType::Q8_0 => self.compute::<S, i8>(s, &mut scratch),
        }
        SCRATCH.set(scratch);
    }
}

/// The working memory of a tile. Queries are numbered row by row, then head by head.
struct State<'s> {
    /// Scaled queries. Those of a register tile of `m` are `[k_dim][m]`, the tiles one after another.
    q: &'s mut [f32],
    /// Each query's softmax over the keys of this split so far.
    split: Softmax<'s>,
    /// The merged softmax of the splits before.
    merged: Softmax<'s>,
    /// Scores of a register tile: `[MAX_QUERIES][GROUP]`.
    scores: &'s mut [f32],
    /// Widened keys and values of a group: `[BLOCKS][k_dim][16]`, then `[BLOCKS][16][v_dim]` and a vector more.
    wide: &'s mut [f32],
}

impl Tile<'_, '_> {
    fn queries(&self) -> usize {
        self.rows.len() * self.attention.group()
    }

    #[inline(always)]
    fn compute<S: Isa, E: Element>(&self, s: S, scratch: &mut Vec<f32>) {
        let layout = self.attention.kv.layout();
        let (dim, padded) = (layout.k_dim(), layout.padded_dim());
        let queries = self.queries();
        let widen = layout.kind() != KvType::F32 && queries >= WIDEN_FROM * MAX_QUERIES;
        let wide_words = if widen { GROUP * (dim + layout.v_dim()) + BLOCK } else { 0 };
        let words = MAX_QUERIES * GROUP + wide_words + queries * (dim + 2 * (padded + 2));
        if scratch.len() < words {
            scratch.resize(words, 0.0);
        }
        let (scores, rest) = scratch.split_at_mut(MAX_QUERIES * GROUP);
        let (wide, rest) = rest.split_at_mut(wide_words);
        let (q, rest) = rest.split_at_mut(queries * dim);
        let (split, rest) = rest.split_at_mut(queries * (padded + 2));
        let split = Softmax::new(split, queries, padded);
        let merged = Softmax::new(&mut rest[..queries * (padded + 2)], queries, padded);
        let mut state = State { q, split, merged, scores, wide };

        state.merged.clear();
        match &self.target {
            Target::Output(out) => {
                let mut first = usize::MAX;
                let mut until = 0;
                for row in self.rows.clone() {
                    let seen = self.attention.visible(row);
                    if !seen.is_empty() {
                        (first, until) = (first.min(seen.start), until.max(seen.end));
                    }
                }
                self.splits::<S, E>(s, first / SPLIT..until.div_ceil(SPLIT), &mut state);
                self.finish(s, &state, out);
            }
            Target::Split(split, _) => self.splits::<S, E>(s, *split..split + 1, &mut state),
            Target::Merge(merge) => {
                if let Some(before) = &merge.before {
                    for query in 0..queries {
                        // SAFETY: they were written before a barrier.
                        unsafe { state.merged.load(query, before, query) };
                    }
                }
                for split in 0..merge.splits {
                    for query in 0..queries {
                        // SAFETY: all splits have been written, and a barrier lies between.
                        unsafe { state.split.load(query, &merge.partials, split * queries + query) };
                        state.merge(s, query);
                    }
                }
                match &merge.after {
                    Some(after) => {
                        for query in 0..queries {
                            // SAFETY: this place belongs to this call alone until the next barrier.
                            unsafe { state.merged.store(query, after) };
                        }
                    }
                    None => self.finish(s, &state, merge.out),
                }
            }
        }
    }

    /// Computes the softmax of each split and merges it, or stores it as the target says.
    #[inline(always)]
    fn splits<S: Isa, E: Element>(&self, s: S, splits: Range<usize>, state: &mut State<'_>) {
        let mut visible = [(0, 0); MAX_ROWS];
        for (row, range) in self.rows.clone().zip(&mut visible) {
            let seen = self.attention.visible(row);
            *range = (seen.start, seen.end);
        }
        if state.wide.is_empty() {
            // Each group fetches the next; the first has perhaps not been fetched.
            let mut start = splits.start * SPLIT;
            while start < splits.end * SPLIT {
                if let Some(blocks) = self.blocks::<E>(start, &visible[..self.rows.len()]) {
                    blocks.fetch(s, self.attention.kv.layout().k_dim());
                    break;
                }
                start += GROUP;
            }
        }
        self.pack_queries(state.q);
        for split in splits {
            state.split.clear();
            for group in 0..SPLIT / GROUP {
                self.group::<S, E>(s, split * SPLIT + group * GROUP, &visible, state);
            }
            for query in 0..self.queries() {
                if let Target::Split(_, partials) = &self.target {
                    // SAFETY: this place belongs to the tile and split alone.
                    unsafe { state.split.store(query, partials) };
                } else {
                    state.merge(s, query);
                }
            }
        }
    }

    /// Takes the keys `start..start + GROUP` into the softmax of all queries.
    #[inline(always)]
    fn group<S: Isa, E: Element>(
        &self,
        s: S,
        start: usize,
        visible: &[(usize, usize); MAX_ROWS],
        state: &mut State<'_>,
    ) {
        let rows = &visible[..self.rows.len()];
        let Some(blocks) = self.blocks::<E>(start, rows) else { return };
        if state.wide.is_empty() {
            let next = self.blocks::<E>(start + GROUP, rows).unwrap_or(blocks);
            self.register_tiles(s, start, visible, &blocks, Some(&next), state);
        } else {
            let layout = self.attention.kv.layout();
            let (keys, rest) = state.wide.split_at_mut(GROUP * layout.k_dim());
            let values = &mut rest[..GROUP * layout.v_dim()];
            // SAFETY: the group's keys are `[k_dim][16]` and its values `[16][v_dim]` for each block, read and widened; a
            // vector lies behind the values.
            let wide = unsafe { blocks.widen(s, keys, values) };
            self.register_tiles(s, start, visible, &wide, None, state);
        }
    }

    #[inline(always)]
    fn register_tiles<S: Isa, E: Element>(
        &self,
        s: S,
        start: usize,
        visible: &[(usize, usize); MAX_ROWS],
        blocks: &Blocks<E>,
        next: Option<&Blocks<E>>,
        state: &mut State<'_>,
    ) {
        let (heads, layout) = (self.attention.group(), self.attention.kv.layout());
        let (k_dim, v_dim) = (layout.k_dim(), layout.v_dim());
        let mut at = 0;
        while at < self.queries() {
            let count = register_tile(self.queries() - at);
            let mut seen = [(0, 0); MAX_QUERIES];
            for (query, seen) in (at..at + count).zip(&mut seen) {
                let (first, until) = visible[query / heads];
                *seen = (first.saturating_sub(start).min(GROUP), until.saturating_sub(start).min(GROUP));
            }
            s.enter(KeyGroup {
                blocks,
                next,
                seen: &seen[..count],
                softcap: self.attention.softcap,
                k_dim,
                v_dim,
                q: &state.q[at * k_dim..][..count * k_dim],
                softmax: state.split.part(at, count),
                scores: state.scores,
            });
            at += count;
        }
    }

    /// The blocks of a group that some row sees. Only they are known to have pages.
    #[inline(always)]
    fn blocks<E: Element>(&self, start: usize, visible: &[(usize, usize)]) -> Option<Blocks<E>> {
        let seq = self.attention.seq[self.rows.start];
        let mut blocks = None;
        for b in 0..BLOCKS {
            let (low, high) = (start + b * BLOCK, start + (b + 1) * BLOCK);
            let mut seen = false;
            for &(first, until) in visible {
                seen |= first < high && until > low && first < until;
            }
            if seen {
                let block = self.attention.pages.block(seq, low / BLOCK);
                let cell = self.attention.kv.cell::<E>(block, self.kv_head);
                blocks
                    .get_or_insert_with(|| Blocks::filled_with(self.attention.kv.layout().kind(), cell))
                    .set(b, cell);
            }
        }
        blocks
    }

    fn pack_queries(&self, packed: &mut [f32]) {
        let (dim, group) = (self.attention.kv.layout().k_dim(), self.attention.group());
        let mut at = 0;
        while at < self.queries() {
            let count = register_tile(self.queries() - at);
            for i in 0..count {
                let (row, head) = ((at + i) / group, self.kv_head * group + (at + i) % group);
                let q = &self.attention.q.row(self.rows.start + row)[head * dim..][..dim];
                for (packed, &value) in packed[at * dim + i..].iter_mut().step_by(count).zip(q) {
                    *packed = value * self.attention.scale;
                }
            }
            at += count;
        }
    }

    /// Writes merged sums divided by merged weights.
    #[inline(always)]
    fn finish<S: Isa>(&self, s: S, state: &State<'_>, target: &AttentionOut<'_>) {
        let layout = self.attention.kv.layout();
        let (dim, padded) = (layout.v_dim(), layout.padded_dim());
        let group = self.attention.group();
        for query in 0..self.queries() {
            let (row, head) = (self.rows.start + query / group, self.kv_head * group + query % group);
            let columns = head * dim..(head + 1) * dim;
            // SAFETY: these rows and columns belong to the tile alone.
            let (mut out, blocks) =
                unsafe { (target.rows.alias().columns(columns.clone()), target.blocks(row, columns)) };
            let out = out.row(row);
            let l = state.merged.l[query];
            if l == 0.0 {
                out.fill(0.0);
                blocks.unwrap_or_default().fill(ActBlock::zeroed());
                continue;
            }
            let o = &state.merged.o[query * padded..][..dim];
            let total = s.splat(l);
            let mut i = 0;
            while i < dim {
                let n = (dim - i).min(S::LANES);
                // SAFETY: `n` values are left at `i`.
                unsafe {
                    let v = s.div(s.load_partial(o.as_ptr().add(i), n), total);
                    s.store_partial(out.as_mut_ptr().add(i), v, n);
                }
                i += n;
            }
            quantise(s, out, blocks.unwrap_or_default());
        }
    }
}

/// How many of the `left` queries the next register tile takes: 6, 4, 3, 2 or 1.
#[inline(always)]
fn register_tile(left: usize) -> usize {
    match left {
        // Two even tiles rather than a full one and a remnant.
        5 | 9 => 3,
        7 | 8 => 4,
        left => left.min(MAX_QUERIES),
    }
}

impl State<'_> {
    /// Merges the softmax of a split with that of the splits before. One that saw nothing changes nothing.
    #[inline(always)]
    fn merge<S: Isa>(&mut self, s: S, query: usize) {
        let (split, merged) = (&self.split, &mut self.merged);
        let (l, m, padded) = (split.l[query], split.m[query], split.padded);
        if l == 0.0 {
            return;
        }
        let top = if m > merged.m[query] { m } else { merged.m[query] };
        let factor = V::splat(s, m - top).exp(s);
        let merged_factor = V::splat(s, merged.m[query] - top).exp(s);
        let o = split.o[query * padded..][..padded].chunks_exact(BLOCK);
        for (merged, o) in merged.o[query * padded..][..padded].chunks_exact_mut(BLOCK).zip(o) {
            // SAFETY: each chunk has 16 values.
            unsafe {
                let before = V::load(s, merged.as_ptr()).mul(s, merged_factor);
                V::load(s, o.as_ptr()).fma(s, factor, before).store(s, merged.as_mut_ptr());
            }
        }
        merged.l[query] = l.mul_add(factor.first(s), merged.l[query] * merged_factor.first(s));
        merged.m[query] = top;
    }
}
