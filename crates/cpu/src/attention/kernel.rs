//! Attention of a tile of rows for one kv head.

#![expect(clippy::needless_range_loop, reason = "counted loops over small arrays become registers")]

use super::cache;
use super::{Attention, BLOCK, GROUP, KvType, SPLIT};
use crate::isa::{Isa, Kernel};
use crate::memory::SharedSlice;
use crate::vector::RowsMut;
use crate::vector::lanes::V;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of a tile at most.
pub(super) const MAX_ROWS: usize = 64;
/// Queries that share loaded keys in registers at most: on AVX2, 6 queries of 16 keys fill 12 of 16 registers.
const MAX_QUERIES: usize = 6;
const BLOCKS: usize = GROUP / BLOCK;

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
    Output(&'b RowsMut<'a>),
    /// One split, into a [`Partial`] for each query.
    Split(usize, SharedSlice<'b, f32>),
    /// The splits that were computed before (numbers, and a place for each), into the output.
    Merge(Range<usize>, SharedSlice<'b, f32>, &'b RowsMut<'a>),
}

/// Words of a softmax in progress: the weighted sum of values, then the largest score and the sum of weights.
pub(super) fn partial_words(padded_dim: usize) -> usize {
    padded_dim + 2
}

thread_local! {
    /// Working memory, kept from call to call.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// The element type of a cache.
trait Element: Copy {
    const SCALED: bool;
    /// # Safety
    /// `p` must be readable for 16 elements.
    unsafe fn load<S: Isa>(s: S, p: *const Self) -> V<S>;
}

impl Element for f32 {
    const SCALED: bool = false;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const f32) -> V<S> {
        // SAFETY: the caller's contract.
        unsafe { V::load(s, p) }
    }
}

impl Element for u16 {
    const SCALED: bool = true;
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u16) -> V<S> {
        // SAFETY: the caller's contract.
        unsafe { V::load_f16(s, p) }
    }
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
        }
        SCRATCH.set(scratch);
    }
}

/// The working memory of a tile. Queries are numbered row by row, then head by head.
struct State<'s> {
    /// Scaled queries. Those of a register tile of `m` are `[head_dim][m]`, the tiles one after another.
    q: &'s mut [f32],
    /// `[queries][padded_dim]`: weighted sums of values of this split.
    o: &'s mut [f32],
    /// Largest score and sum of weights of this split.
    m: &'s mut [f32],
    l: &'s mut [f32],
    /// The merged softmax of the splits before, in the same form.
    merged_o: &'s mut [f32],
    merged_m: &'s mut [f32],
    merged_l: &'s mut [f32],
}

impl Tile<'_, '_> {
    #[inline(always)]
    fn compute<S: Isa, E: Element>(&self, s: S, scratch: &mut Vec<f32>) {
        let layout = self.attention.kv.layout();
        let (dim, padded) = (layout.head_dim(), layout.padded_dim());
        let group = self.attention.group();
        let queries = self.rows.len() * group;
        let words = queries * (dim + 2 * padded + 4);
        if scratch.len() < words {
            scratch.resize(words, 0.0);
        }
        let (q, rest) = scratch.split_at_mut(queries * dim);
        let (o, rest) = rest.split_at_mut(queries * padded);
        let (merged_o, rest) = rest.split_at_mut(queries * padded);
        let (m, rest) = rest.split_at_mut(queries);
        let (l, rest) = rest.split_at_mut(queries);
        let (merged_m, rest) = rest.split_at_mut(queries);
        let merged_l = &mut rest[..queries];
        let mut state = State { q, o, m, l, merged_o, merged_m, merged_l };

        let mut visible = [(0, 0); MAX_ROWS];
        let (mut first, mut until) = (usize::MAX, 0);
        for (row, range) in self.rows.clone().zip(&mut visible) {
            let seen = self.attention.visible(row);
            *range = (seen.start, seen.end);
            if !seen.is_empty() {
                (first, until) = (first.min(seen.start), until.max(seen.end));
            }
        }
        let splits = if first < until { first / SPLIT..until.div_ceil(SPLIT) } else { 0..0 };

        state.merged_o.fill(0.0);
        state.merged_m.fill(f32::NEG_INFINITY);
        state.merged_l.fill(0.0);
        let splits = match &self.target {
            Target::Output(_) => splits,
            Target::Split(split, _) => *split..split + 1,
            Target::Merge(..) => 0..0,
        };
        self.pack_queries(state.q);
        for split in splits {
            state.o.fill(0.0);
            state.m.fill(f32::NEG_INFINITY);
            state.l.fill(0.0);
            for group in 0..SPLIT / GROUP {
                let start = split * SPLIT + group * GROUP;
                for queries in self.register_tiles() {
                    let (tile, visible, state) = (self, &visible, &mut state);
                    s.enter(KeyGroup { tile, start, queries, visible, state, element: PhantomData::<E> });
                }
            }
            for query in 0..queries {
                match &self.target {
                    Target::Split(_, partials) => {
                        let at = query * partial_words(padded);
                        // SAFETY: this place belongs to the tile and split alone.
                        let partial = unsafe { partials.part_mut(at..at + partial_words(padded)) };
                        partial[..padded].copy_from_slice(&state.o[query * padded..][..padded]);
                        partial[padded] = state.m[query];
                        partial[padded + 1] = state.l[query];
                    }
                    _ => state.merge(s, query, padded),
                }
            }
        }
        match &self.target {
            Target::Output(out) => self.finish(s, &state, out),
            Target::Split(..) => {}
            Target::Merge(splits, partials, out) => {
                for split in 0..splits.len() {
                    for query in 0..queries {
                        let at = (split * queries + query) * partial_words(padded);
                        // SAFETY: all splits have been written, and a barrier lies between.
                        let partial = unsafe { partials.part(at..at + partial_words(padded)) };
                        state.o[query * padded..][..padded].copy_from_slice(&partial[..padded]);
                        state.m[query] = partial[padded];
                        state.l[query] = partial[padded + 1];
                        state.merge(s, query, padded);
                    }
                }
                self.finish(s, &state, out);
            }
        }
    }

    /// The register tiles, of 6, 4, 3, 2 or 1 queries.
    #[inline(always)]
    fn register_tiles(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let queries = self.rows.len() * self.attention.group();
        let mut at = 0;
        std::iter::from_fn(move || {
            let size = match queries - at {
                0 => return None,
                // Two even tiles rather than a full one and a remnant.
                5 | 9 => 3,
                7 | 8 => 4,
                left => left.min(MAX_QUERIES),
            };
            at += size;
            Some(at - size..at)
        })
    }

    fn pack_queries(&self, packed: &mut [f32]) {
        let (dim, group) = (self.attention.kv.layout().head_dim(), self.attention.group());
        for tile in self.register_tiles() {
            for query in tile.clone() {
                let head = self.kv_head * group + query % group;
                let q = &self.attention.q.row(self.rows.start + query / group)[head * dim..][..dim];
                for (d, &value) in q.iter().enumerate() {
                    packed[tile.start * dim + d * tile.len() + query - tile.start] =
                        value * self.attention.scale;
                }
            }
        }
    }

    /// Writes merged sums divided by merged weights.
    #[inline(always)]
    fn finish<S: Isa>(&self, s: S, state: &State<'_>, out: &RowsMut<'_>) {
        let layout = self.attention.kv.layout();
        let (dim, padded) = (layout.head_dim(), layout.padded_dim());
        let group = self.attention.group();
        for query in 0..self.rows.len() * group {
            let head = self.kv_head * group + query % group;
            // SAFETY: these rows and columns belong to the tile alone.
            let mut out = unsafe { out.alias() }.columns(head * dim..(head + 1) * dim);
            let out = out.row(self.rows.start + query / group);
            let l = state.merged_l[query];
            if l == 0.0 {
                out.fill(0.0);
                continue;
            }
            let o = &state.merged_o[query * padded..][..dim];
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
        }
    }
}

/// Takes the keys `start..start + GROUP` into the softmax of some queries. A kernel of its own, so that the compiler meets
/// one function of moderate size instead of copies in a large one.
struct KeyGroup<'k, 'a, 'b, 's, E> {
    tile: &'k Tile<'a, 'b>,
    start: usize,
    queries: Range<usize>,
    visible: &'k [(usize, usize); MAX_ROWS],
    state: &'k mut State<'s>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for KeyGroup<'_, '_, '_, '_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let Self { tile, start, queries, visible, state, .. } = self;
        let attention = tile.attention;
        let layout = attention.kv.layout();
        let (dim, padded) = (layout.head_dim(), layout.padded_dim());
        let heads = attention.group();
        let count = queries.len();

        // What each query sees of the group, as offsets.
        let mut seen = [(0, 0); MAX_QUERIES];
        for (query, seen) in queries.clone().zip(&mut seen) {
            let (first, until) = visible[query / heads];
            *seen = (first.saturating_sub(start).min(GROUP), until.saturating_sub(start).min(GROUP));
        }
        let seen = &seen[..count];

        // The blocks that some query sees. Only they are known to have pages.
        let seq = attention.seq[tile.rows.start];
        let mut cells = [None::<cache::Cell<E>>; BLOCKS];
        let mut any = None;
        for (b, cell) in cells.iter_mut().enumerate() {
            let (low, high) = (b * BLOCK, (b + 1) * BLOCK);
            if seen.iter().any(|&(first, until)| first < high && until > low && first < until) {
                let block = attention.pages.block(seq, start / BLOCK + b);
                *cell = Some(attention.kv.cell(block, tile.kv_head));
                any = *cell;
            }
        }
        let Some(any) = any else { return };
        // Where a block is not seen, products are made of one that is, and not used.
        let keys = cells.map(|cell| cell.unwrap_or(any).keys.cast_const());
        let values = cells.map(|cell| cell.unwrap_or(any).values.cast_const());

        let mut scores = [[0f32; GROUP]; MAX_QUERIES];
        let q = state.q[queries.start * dim..][..count * dim].as_ptr();
        match count {
            1 => s.enter(Products::<E, 1, 2> { q, dim, keys: &keys, scores: &mut scores }),
            2 => s.enter(Products::<E, 2, 2> { q, dim, keys: &keys, scores: &mut scores }),
            3 => s.enter(Products::<E, 3, 2> { q, dim, keys: &keys, scores: &mut scores }),
            4 => s.enter(Products::<E, 4, 1> { q, dim, keys: &keys, scores: &mut scores }),
            _ => s.enter(Products::<E, 6, 1> { q, dim, keys: &keys, scores: &mut scores }),
        }

        for (i, &(first, until)) in seen.iter().enumerate() {
            if first < until {
                let query = queries.start + i;
                let (m, l) = (&mut state.m[query], &mut state.l[query]);
                let o = &mut state.o[query * padded..][..padded];
                weights(s, attention.softcap, &cells, (first, until), &mut scores[i], m, l, o);
            }
        }

        // Blocks that every query sees whole go together. In others each query takes the positions it sees.
        let o = state.o[queries.start * padded..][..count * padded].as_mut_ptr();
        let mut b = 0;
        while b < BLOCKS {
            let mut end = b;
            while end < BLOCKS && seen.iter().all(|seen| seen.0 <= end * BLOCK && seen.1 >= (end + 1) * BLOCK)
            {
                end += 1;
            }
            if end > b {
                let (weights, part) = (scores.as_ptr().cast::<f32>(), (b * BLOCK, end * BLOCK));
                match count {
                    1 => s.enter(Values::<E, 1, 2> { weights, part, values: &values, o, padded }),
                    2 => s.enter(Values::<E, 2, 2> { weights, part, values: &values, o, padded }),
                    3 => s.enter(Values::<E, 3, 2> { weights, part, values: &values, o, padded }),
                    4 => s.enter(Values::<E, 4, 1> { weights, part, values: &values, o, padded }),
                    _ => s.enter(Values::<E, 6, 1> { weights, part, values: &values, o, padded }),
                }
                b = end;
                continue;
            }
            for (i, &(first, until)) in seen.iter().enumerate() {
                let part = (first.max(b * BLOCK), until.min((b + 1) * BLOCK));
                if part.0 < part.1 {
                    let o = o.wrapping_add(i * padded);
                    let weights = scores[i].as_ptr();
                    s.enter(Values::<E, 1, 2> { weights, part, values: &values, o, padded });
                }
            }
            b += 1;
        }
    }
}

/// Turns the products of one query into weights: scales, caps and masks them, moves the running maximum, and scales
/// what was summed before to it.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "parts of one state that are borrowed apart")]
fn weights<S: Isa, E: Element>(
    s: S,
    softcap: Option<f32>,
    cells: &[Option<cache::Cell<E>>; BLOCKS],
    (first, until): (usize, usize),
    scores: &mut [f32; GROUP],
    m: &mut f32,
    l: &mut f32,
    o: &mut [f32],
) {
    const LANE: [f32; BLOCK] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    let masked = V::splat(s, f32::NEG_INFINITY);
    let mut score = [masked; BLOCKS];
    for (b, score) in score.iter_mut().enumerate() {
        let (low, high) = (b * BLOCK, (b + 1) * BLOCK);
        let Some(cell) = &cells[b] else { continue };
        if first >= high || until <= low {
            continue;
        }
        // SAFETY: a block's scores are 16 f32, and so are its factors.
        let mut v = unsafe { V::load(s, scores[low..high].as_ptr()) };
        if E::SCALED {
            // SAFETY: as above.
            v = v.mul(s, unsafe { V::load(s, cell.scales) });
        }
        if let Some(cap) = softcap {
            let cap = V::splat(s, cap);
            v = v.div(s, cap).tanh(s).mul(s, cap);
        }
        if first > low || until < high {
            // SAFETY: LANE has 16 values.
            let lane = unsafe { V::load(s, LANE.as_ptr()) };
            let before = V::splat(s, first.saturating_sub(low) as f32);
            let after = V::splat(s, (until - low).min(BLOCK) as f32);
            v = lane.select_lt(s, before, masked, v);
            v = lane.select_lt(s, after, v, masked);
        }
        *score = v;
    }

    let largest = score[0].max(s, score[1]).max(s, score[2].max(s, score[3])).largest(s);
    let moved = if largest > *m { largest } else { *m };
    if moved != *m {
        let factor = V::splat(s, *m - moved).exp(s);
        let first = factor.first(s);
        *l *= first;
        for o in o.chunks_exact_mut(BLOCK) {
            // SAFETY: the chunk has 16 values.
            unsafe { V::load(s, o.as_ptr()).mul(s, factor).store(s, o.as_mut_ptr()) };
        }
        *m = moved;
    }
    let top = V::splat(s, moved);
    let mut sum = V::splat(s, 0.0);
    for (b, score) in score.iter().enumerate() {
        let Some(cell) = &cells[b] else { continue };
        let weight = score.sub(s, top).exp(s);
        sum = sum.add(s, weight);
        // SAFETY: a block's scores are 16 f32, and so are its factors.
        unsafe {
            let weight = if E::SCALED { weight.mul(s, V::load(s, cell.scales.add(BLOCK))) } else { weight };
            weight.store(s, scores[b * BLOCK..(b + 1) * BLOCK].as_mut_ptr());
        }
    }
    *l += sum.sum(s);
}

impl State<'_> {
    /// Merges the softmax of a split with that of the splits before. One that saw nothing changes nothing.
    #[inline(always)]
    fn merge<S: Isa>(&mut self, s: S, query: usize, padded: usize) {
        if self.l[query] == 0.0 {
            return;
        }
        let (m, merged_m) = (self.m[query], self.merged_m[query]);
        let top = if m > merged_m { m } else { merged_m };
        let factor = V::splat(s, m - top).exp(s);
        let merged_factor = V::splat(s, merged_m - top).exp(s);
        let o = self.o[query * padded..][..padded].chunks_exact(BLOCK);
        for (merged, o) in self.merged_o[query * padded..][..padded].chunks_exact_mut(BLOCK).zip(o) {
            // SAFETY: each chunk has 16 values.
            unsafe {
                let before = V::load(s, merged.as_ptr()).mul(s, merged_factor);
                V::load(s, o.as_ptr()).fma(s, factor, before).store(s, merged.as_mut_ptr());
            }
        }
        self.merged_l[query] =
            self.l[query].mul_add(factor.first(s), self.merged_l[query] * merged_factor.first(s));
        self.merged_m[query] = top;
    }
}

/// `scores[i][k]` = the product of query `i` and key `k`, for `M` queries, `B` blocks of keys at a time.
struct Products<'k, E, const M: usize, const B: usize> {
    /// `[dim][M]`
    q: *const f32,
    dim: usize,
    /// `[dim][16]` each
    keys: &'k [*const E; BLOCKS],
    scores: &'k mut [[f32; GROUP]; MAX_QUERIES],
}

impl<E: Element, const M: usize, const B: usize> Kernel for Products<'_, E, M, B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        for (b, keys) in self.keys.chunks_exact(B).enumerate() {
            let mut sums = [[V::splat(s, 0.0); B]; M];
            let mut d = 0;
            while d < self.dim {
                let mut k = [V::splat(s, 0.0); B];
                for j in 0..B {
                    // SAFETY: `d < dim`, and the block's keys are `[dim][16]`.
                    k[j] = unsafe { E::load(s, keys[j].add(d * BLOCK)) };
                }
                for i in 0..M {
                    // SAFETY: `d < dim`, and the queries are `[dim][M]`.
                    let q = V::splat(s, unsafe { *self.q.add(d * M + i) });
                    for j in 0..B {
                        sums[i][j] = q.fma(s, k[j], sums[i][j]);
                    }
                }
                d += 1;
            }
            for i in 0..M {
                for j in 0..B {
                    let scores = &mut self.scores[i][(b * B + j) * BLOCK..][..BLOCK];
                    // SAFETY: a block's scores are 16 f32.
                    unsafe { sums[i][j].store(s, scores.as_mut_ptr()) };
                }
            }
        }
    }
}

/// Adds weighted values to `o`, for `M` queries, `C` times 16 dimensions at a time.
struct Values<'k, E, const M: usize, const C: usize> {
    /// `[M][GROUP]`
    weights: *const f32,
    /// First and last plus one of the positions, as offsets in the group.
    part: (usize, usize),
    /// `[16][padded]` each
    values: &'k [*const E; BLOCKS],
    /// `[M][padded]`
    o: *mut f32,
    padded: usize,
}

impl<E: Element, const M: usize, const C: usize> Kernel for Values<'_, E, M, C> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let mut c = 0;
        while c + C * BLOCK <= self.padded {
            self.columns::<S, C>(s, c);
            c += C * BLOCK;
        }
        if C > 1 && c < self.padded {
            self.columns::<S, 1>(s, c);
        }
    }
}

impl<E: Element, const M: usize, const C: usize> Values<'_, E, M, C> {
    /// The dimensions `c..c + 16 * D`.
    #[inline(always)]
    fn columns<S: Isa, const D: usize>(&self, s: S, c: usize) {
        let o = self.o.wrapping_add(c);
        let mut sums = [[V::splat(s, 0.0); D]; M];
        for i in 0..M {
            for j in 0..D {
                // SAFETY: the columns lie in the row of query `i`.
                sums[i][j] = unsafe { V::load(s, o.add(i * self.padded + j * BLOCK)) };
            }
        }
        let mut at = self.part.0;
        while at < self.part.1 {
            let mut row = self.values[at / BLOCK].wrapping_add(at % BLOCK * self.padded + c);
            let end = self.part.1.min((at / BLOCK + 1) * BLOCK);
            while at < end {
                // SAFETY: `at % 16` is a position of the block, the columns lie in its row, and `at` in the group.
                unsafe {
                    let mut v = [V::splat(s, 0.0); D];
                    for j in 0..D {
                        v[j] = E::load(s, row.add(j * BLOCK));
                    }
                    for i in 0..M {
                        let weight = V::splat(s, *self.weights.add(i * GROUP + at));
                        for j in 0..D {
                            sums[i][j] = weight.fma(s, v[j], sums[i][j]);
                        }
                    }
                }
                row = row.wrapping_add(self.padded);
                at += 1;
            }
        }
        for i in 0..M {
            for j in 0..D {
                // SAFETY: as for the loads.
                unsafe { sums[i][j].store(s, o.add(i * self.padded + j * BLOCK)) };
            }
        }
    }
}
