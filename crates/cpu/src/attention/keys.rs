//! The keys of one group against the queries of one register tile.

#![expect(clippy::needless_range_loop, reason = "counted loops over small arrays become registers")]

use super::cache::Cell;
use super::{BLOCK, BLOCKS, GROUP, KvType};
use crate::isa::{Isa, Kernel};
use crate::memory::SharedSlice;
use crate::vector::lanes::V;
use tensor::ops::KV_SCALED;

/// Queries that share loaded keys in registers at most: on AVX2, 6 queries of 16 keys fill 12 of 16 registers.
pub(super) const MAX_QUERIES: usize = 6;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The element type of keys and values in memory.
pub(super) trait Element: Copy {
    /// Times 16 elements that a cache line has.
    const STEPS: usize = LINE / (BLOCK * size_of::<Self>());
    /// # Safety
    /// `p` must be readable for 16 elements.
    unsafe fn load<S: Isa>(s: S, p: *const Self) -> V<S>;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const f32) -> V<S> {
        // SAFETY: the caller's contract.
        unsafe { V::load(s, p) }
    }
}

/// binary16
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const u16) -> V<S> {
        // SAFETY: the caller's contract.
        unsafe { V::load_f16(s, p) }
    }
}

impl Element for i8 {
    #[inline(always)]
    unsafe fn load<S: Isa>(s: S, p: *const i8) -> V<S> {
        // SAFETY: the caller's contract.
        unsafe { V::load_i8(s, p) }
    }
}

/// The blocks of a group, for one kv head. Where a block is not seen by anyone another stands in, whose products are made
/// and not used.
#[derive(Clone, Copy)]
pub(super) struct Blocks<E> {
    /// How the cache stores them, whatever they are widened to.
    kind: KvType,
    /// `[k_dim][16]` each
    keys: [*const E; BLOCKS],
    /// `[16][v_dim]` each; readable in whole vectors
    values: [*const E; BLOCKS],
    /// Factors of the 16 keys, then of the 16 values, as the cache has them.
    scales: [*const f32; BLOCKS],
}

impl<E: Element> Blocks<E> {
    #[inline(always)]
    pub(super) fn filled_with(kind: KvType, cell: Cell<E>) -> Self {
        Self { kind, keys: [cell.keys; BLOCKS], values: [cell.values; BLOCKS], scales: [cell.scales; BLOCKS] }
    }

    #[inline(always)]
    pub(super) fn set(&mut self, b: usize, cell: Cell<E>) {
        (self.keys[b], self.values[b], self.scales[b]) = (cell.keys, cell.values, cell.scales);
    }

    /// The factors of each 32 dimensions, `[dimensions / 32][16]` in bfloat16 for each block, from dimension `from` of a
    /// position's key and value on; `None` where the cache has others.
    #[inline(always)]
    fn block_scales(&self, from: usize) -> Option<[*const u16; BLOCKS]> {
        if self.kind != KvType::Q8_0 {
            return None;
        }
        let mut scales = [std::ptr::null(); BLOCKS];
        for b in 0..BLOCKS {
            scales[b] = self.scales[b].cast::<u16>().wrapping_add(BLOCK * from.div_ceil(KV_SCALED));
        }
        Some(scales)
    }

    /// Asks for the factors, and for the keys of so many dimensions that follow them.
    #[inline(always)]
    pub(super) fn fetch<S: Isa>(&self, s: S, dimensions: usize) {
        for b in 0..BLOCKS {
            let mut at = self.scales[b].cast::<u8>();
            let end = self.keys[b].wrapping_add(dimensions * BLOCK).cast();
            while at < end {
                s.prefetch(at);
                at = at.wrapping_add(LINE);
            }
        }
    }

    /// The blocks with their elements widened into `keys` and `values`, a quarter of these for each block. `values` must
    /// be readable past its end as far as vectors may reach past a row.
    ///
    /// # Safety
    /// The blocks must be readable, with as many keys and values as `keys` and `values` hold.
    #[inline(always)]
    pub(super) unsafe fn widen<S: Isa>(&self, s: S, keys: &mut [f32], values: &mut [f32]) -> Blocks<f32> {
        let mut wide = Blocks {
            kind: self.kind,
            keys: [std::ptr::null(); BLOCKS],
            values: [std::ptr::null(); BLOCKS],
            scales: self.scales,
        };
        let (key_len, value_len) = (keys.len() / BLOCKS, values.len() / BLOCKS);
        for b in 0..BLOCKS {
            let (keys, values) =
                (&mut keys[b * key_len..][..key_len], &mut values[b * value_len..][..value_len]);
            // SAFETY: the caller's contract.
            unsafe {
                widen(s, self.keys[b], keys);
                widen(s, self.values[b], values);
            }
            (wide.keys[b], wide.values[b]) = (keys.as_ptr(), values.as_ptr());
        }
        wide
    }
}

/// # Safety
/// `from` must be readable for as many elements as `to` has.
#[inline(always)]
unsafe fn widen<S: Isa, E: Element>(s: S, from: *const E, to: &mut [f32]) {
    let mut i = 0;
    while i + BLOCK <= to.len() {
        // SAFETY: `i + 16` is within both.
        unsafe { E::load(s, from.add(i)).store(s, to.as_mut_ptr().add(i)) };
        i += BLOCK;
    }
}

/// Words of a softmax in memory: the weighted sum of values, then the largest score and the sum of weights.
pub(super) fn partial_words(padded_dim: usize) -> usize {
    padded_dim + 2
}

/// Running softmaxes of some queries.
pub(super) struct Softmax<'s> {
    /// `[queries][padded]`: sums of weighted values.
    pub(super) o: &'s mut [f32],
    /// Largest score of each query.
    pub(super) m: &'s mut [f32],
    /// Sum of the weights of each query; zero exactly where nothing was seen.
    pub(super) l: &'s mut [f32],
    pub(super) padded: usize,
}

impl<'s> Softmax<'s> {
    /// In memory of `queries * (padded + 2)` words.
    pub(super) fn new(words: &'s mut [f32], queries: usize, padded: usize) -> Self {
        let (o, rest) = words.split_at_mut(queries * padded);
        let (m, l) = rest.split_at_mut(queries);
        Self { o, m, l, padded }
    }

    pub(super) fn clear(&mut self) {
        self.o.fill(0.0);
        self.m.fill(f32::NEG_INFINITY);
        self.l.fill(0.0);
    }

    /// Takes the softmax of `query` from place `at` of `from`.
    ///
    /// # Safety
    /// Nobody writes that place meanwhile.
    pub(super) unsafe fn load(&mut self, query: usize, from: &SharedSlice<'_, f32>, at: usize) {
        let words = partial_words(self.padded);
        // SAFETY: the caller's contract.
        let partial = unsafe { from.part(at * words..(at + 1) * words) };
        self.o[query * self.padded..][..self.padded].copy_from_slice(&partial[..self.padded]);
        (self.m[query], self.l[query]) = (partial[self.padded], partial[self.padded + 1]);
    }

    /// Puts the softmax of `query` at its place of `to`.
    ///
    /// # Safety
    /// Nobody else uses that place meanwhile.
    pub(super) unsafe fn store(&self, query: usize, to: &SharedSlice<'_, f32>) {
        let words = partial_words(self.padded);
        // SAFETY: the caller's contract.
        let partial = unsafe { to.part_mut(query * words..(query + 1) * words) };
        partial[..self.padded].copy_from_slice(&self.o[query * self.padded..][..self.padded]);
        (partial[self.padded], partial[self.padded + 1]) = (self.m[query], self.l[query]);
    }

    pub(super) fn part(&mut self, first: usize, count: usize) -> Softmax<'_> {
        Softmax {
            o: &mut self.o[first * self.padded..][..count * self.padded],
            m: &mut self.m[first..][..count],
            l: &mut self.l[first..][..count],
            padded: self.padded,
        }
    }
}

/// Takes a group of keys into the softmaxes of some queries. A kernel of its own, so that the compiler meets a function of
/// moderate size instead of copies in a large one.
pub(super) struct KeyGroup<'k, E> {
    pub(super) blocks: &'k Blocks<E>,
    /// First and last plus one of the keys that each query sees, as offsets in the group.
    pub(super) seen: &'k [(usize, usize)],
    pub(super) softcap: Option<f32>,
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    /// The blocks that come next. Where there are some, the memory of these and of those is fetched meanwhile.
    pub(super) next: Option<&'k Blocks<E>>,
    /// `[k_dim][queries]`
    pub(super) q: &'k [f32],
    pub(super) softmax: Softmax<'k>,
    /// `[MAX_QUERIES][GROUP]`, any content
    pub(super) scores: &'k mut [f32],
}

impl<E: Element> Kernel for KeyGroup<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        // The blocks that any of the queries sees lie in `low..high`.
        let (mut low, mut high) = (BLOCKS, 0);
        for &(first, until) in self.seen {
            if first < until {
                (low, high) = (low.min(first / BLOCK), high.max(until.div_ceil(BLOCK)));
            }
        }
        if low >= high {
            return;
        }
        let (q, dim, keys) = (self.q.as_ptr(), self.k_dim, &self.blocks.keys);
        // A sum waits for its last step: twelve at once are enough, and as many as fit.
        let wide = const { S::REGISTERS >= 32 && S::LANES == BLOCK };
        if let Some(next) = self.next {
            next.fetch(s, 0);
        }
        let soon = self.next.is_some().then_some(&self.blocks.values);
        let scores = self.scores.as_mut_ptr();
        let key_scales = self.blocks.block_scales(0);
        let scales = key_scales.as_ref();
        match self.seen.len() {
            1 => s.enter(Products::<E, 1, 2> { q, dim, keys, scales, soon, low, high, scores }),
            2 => s.enter(Products::<E, 2, 2> { q, dim, keys, scales, soon, low, high, scores }),
            3 => s.enter(Products::<E, 3, 2> { q, dim, keys, scales, soon, low, high, scores }),
            4 if wide => s.enter(Products::<E, 4, 2> { q, dim, keys, scales, soon, low, high, scores }),
            4 => s.enter(Products::<E, 4, 1> { q, dim, keys, scales, soon, low, high, scores }),
            _ if wide => s.enter(Products::<E, 6, 2> { q, dim, keys, scales, soon, low, high, scores }),
            _ => s.enter(Products::<E, 6, 1> { q, dim, keys, scales, soon, low, high, scores }),
        }
        self.weigh(s, low, high);

        // Blocks that every query sees whole go together. In others each query takes the positions it sees.
        let (values, dim, padded) = (&self.blocks.values, self.v_dim, self.softmax.padded);
        let (weights, o) = (self.scores.as_ptr(), self.softmax.o.as_mut_ptr());
        let value_scales = self.blocks.block_scales(self.k_dim);
        let scales = value_scales.as_ref();
        let soon = self.next.map(
            #[inline(always)]
            |next| &next.keys,
        );
        let (mut first, mut until) = (0, GROUP);
        for seen in self.seen {
            (first, until) = (first.max(seen.0), until.min(seen.1));
        }
        let (whole_low, whole_high) = (first.div_ceil(BLOCK), until / BLOCK);
        let mut b = low;
        while b < high {
            if b == whole_low && whole_low < whole_high {
                let part = (whole_low * BLOCK, whole_high * BLOCK);
                match self.seen.len() {
                    1 => s.enter(Values::<E, 1, 2> { weights, part, values, scales, soon, dim, o, padded }),
                    2 => s.enter(Values::<E, 2, 2> { weights, part, values, scales, soon, dim, o, padded }),
                    3 => s.enter(Values::<E, 3, 2> { weights, part, values, scales, soon, dim, o, padded }),
                    4 if wide => {
                        s.enter(Values::<E, 4, 2> { weights, part, values, scales, soon, dim, o, padded })
                    }
                    4 => s.enter(Values::<E, 4, 1> { weights, part, values, scales, soon, dim, o, padded }),
                    _ if wide => {
                        s.enter(Values::<E, 6, 2> { weights, part, values, scales, soon, dim, o, padded })
                    }
                    _ => s.enter(Values::<E, 6, 1> { weights, part, values, scales, soon, dim, o, padded }),
                }
                b = whole_high;
                continue;
            }
            for (i, &(first, until)) in self.seen.iter().enumerate() {
                let part = (first.max(b * BLOCK), until.min((b + 1) * BLOCK));
                if part.0 < part.1 {
                    let (o, weights) = (o.wrapping_add(i * padded), weights.wrapping_add(i * GROUP));
                    s.enter(Values::<E, 1, 2> { weights, part, values, scales, soon, dim, o, padded });
                }
            }
            b += 1;
        }
    }
}

impl<E: Element> KeyGroup<'_, E> {
    /// Turns products into weights: scales, caps and masks them, moves each query's running maximum, and scales what was
    /// summed before to it. One step for all queries after the other: within a step nothing waits for anything.
    #[inline(always)]
    fn weigh<S: Isa>(&mut self, s: S, low: usize, high: usize) {
        const LANE: [f32; BLOCK] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
        // SAFETY: LANE has 16 values.
        let lane = unsafe { V::load(s, LANE.as_ptr()) };
        let masked = V::splat(s, f32::NEG_INFINITY);
        let mut largest = [f32::NEG_INFINITY; MAX_QUERIES];
        for (i, &(first, until)) in self.seen.iter().enumerate() {
            let mut top = masked;
            for b in low..high {
                let (from, to) = (b * BLOCK, (b + 1) * BLOCK);
                let place = self.scores[i * GROUP + from..][..BLOCK].as_mut_ptr();
                let v = if first >= to || until <= from {
                    masked
                } else {
                    // SAFETY: a block's scores are 16 f32.
                    let mut v = unsafe { V::load(s, place) };
                    if self.blocks.kind == KvType::F16 {
                        // SAFETY: a block that a query sees is readable, and so are its factors.
                        v = v.mul(s, unsafe { V::load(s, self.blocks.scales[b]) });
                    }
                    if let Some(cap) = self.softcap {
                        let cap = V::splat(s, cap);
                        v = v.div(s, cap).tanh(s).mul(s, cap);
                    }
                    if first > from {
                        v = lane.select_lt(s, V::splat(s, (first - from) as f32), masked, v);
                    }
                    if until < to {
                        v = lane.select_lt(s, V::splat(s, (until - from) as f32), v, masked);
                    }
                    v
                };
                // SAFETY: as for the load.
                unsafe { v.store(s, place) };
                top = v.max(s, top);
            }
            largest[i] = top.largest(s);
        }

        let padded = self.softmax.padded;
        for i in 0..self.seen.len() {
            let m = self.softmax.m[i];
            if largest[i] > m {
                self.softmax.m[i] = largest[i];
                let factor = V::splat(s, m - largest[i]).exp(s);
                self.softmax.l[i] *= factor.first(s);
                let o = &mut self.softmax.o[i * padded..][..padded];
                let mut c = 0;
                while c < padded {
                    let o = o[c..][..BLOCK].as_mut_ptr();
                    // SAFETY: 16 values are left at `c`.
                    unsafe { V::load(s, o).mul(s, factor).store(s, o) };
                    c += BLOCK;
                }
            }
        }

        for (i, &(first, until)) in self.seen.iter().enumerate() {
            if first >= until {
                continue;
            }
            let top = V::splat(s, self.softmax.m[i]);
            let mut sum = V::splat(s, 0.0);
            for b in low..high {
                let place = self.scores[i * GROUP + b * BLOCK..][..BLOCK].as_mut_ptr();
                // SAFETY: a block's scores are 16 f32; the factors of a block (or of the one that stands in) are readable.
                unsafe {
                    let mut weight = V::load(s, place).sub(s, top).exp(s);
                    sum = sum.add(s, weight);
                    if self.blocks.kind == KvType::F16 {
                        weight = weight.mul(s, V::load(s, self.blocks.scales[b].add(BLOCK)));
                    }
                    weight.store(s, place);
                }
            }
            self.softmax.l[i] += sum.sum(s);
        }
    }
}

/// `scores[i][k]` = the product of query `i` and key `k`, for `M` queries, `B` blocks of keys at a time.
struct Products<'k, E, const M: usize, const B: usize> {
    /// `[dim][M]`
    q: *const f32,
    dim: usize,
    /// `[dim][16]` each
    keys: &'k [*const E; BLOCKS],
    /// Factors that belong to the product over each 32 dimensions, as [`Blocks::block_scales`] says.
    scales: Option<&'k [*const u16; BLOCKS]>,
    /// What is read next, the values of these positions: as much of each block is fetched as is read of the keys. Memory is
    /// read at the same pace while products are made and while values are summed, or it would be idle for half the time.
    soon: Option<&'k [*const E; BLOCKS]>,
    /// The blocks `low..high` are wanted.
    low: usize,
    high: usize,
    /// `[M][GROUP]`
    scores: *mut f32,
}

impl<E: Element, const M: usize, const B: usize> Kernel for Products<'_, E, M, B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        // Dimensions that are summed before a factor.
        let step = if self.scales.is_some() { KV_SCALED } else { self.dim };
        let mut b = self.low / B * B;
        while b < self.high {
            let (mut keys, mut soon) = ([std::ptr::null(); B], [std::ptr::null(); B]);
            for j in 0..B {
                keys[j] = self.keys[b + j];
                if let Some(blocks) = self.soon {
                    soon[j] = blocks[b + j];
                }
            }
            let mut start = 0;
            while start < self.dim {
                let end = self.dim.min(start + step);
                let mut sums = [[V::splat(s, 0.0); B]; M];
                let mut d = start;
                while d < end {
                    let mut k = [V::splat(s, 0.0); B];
                    for j in 0..B {
                        // SAFETY: `d < dim`, and the block's keys are `[dim][16]`.
                        k[j] = unsafe { E::load(s, keys[j].add(d * BLOCK)) };
                        if self.soon.is_some() && d % E::STEPS == 0 {
                            s.prefetch(soon[j].wrapping_add(d * BLOCK).cast());
                        }
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
                for j in 0..B {
                    let factor = self.scales.map(
                        #[inline(always)]
                        |scales| {
                            // SAFETY: the block has factors for the dimensions from `start` on.
                            unsafe { V::load_bf16(s, scales[b + j].add(start / KV_SCALED * BLOCK)) }
                        },
                    );
                    for i in 0..M {
                        // SAFETY: the scores are `[M][GROUP]`, and block `b + j` is one of the group.
                        unsafe {
                            let place = self.scores.add(i * GROUP + (b + j) * BLOCK);
                            let sum = match factor {
                                None => sums[i][j],
                                Some(factor) if start == 0 => sums[i][j].mul(s, factor),
                                Some(factor) => sums[i][j].fma(s, factor, V::load(s, place)),
                            };
                            sum.store(s, place);
                        }
                    }
                }
                start = end;
            }
            b += B;
        }
    }
}

/// Adds weighted values to `o`, for `M` queries, `C` times 16 dimensions at a time.
struct Values<'k, E, const M: usize, const C: usize> {
    /// `[M][GROUP]`
    weights: *const f32,
    /// First and last plus one of the positions, as offsets in the group.
    part: (usize, usize),
    /// `[16][dim]` each, readable up to `padded` from the start of a row
    values: &'k [*const E; BLOCKS],
    /// Factors of the values' weights in each 32 dimensions, as [`Blocks::block_scales`] says.
    scales: Option<&'k [*const u16; BLOCKS]>,
    /// What is read next, the keys of the positions after these: as much of each block is fetched as is read of the values.
    soon: Option<&'k [*const E; BLOCKS]>,
    dim: usize,
    /// `[M][padded]`
    o: *mut f32,
    padded: usize,
}

impl<E: Element, const M: usize, const C: usize> Kernel for Values<'_, E, M, C> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let Some(scales) = self.scales else {
            self.all_columns(s, self.weights, 0, self.padded);
            return;
        };
        let mut scaled = [[0f32; GROUP]; M];
        let mut c = 0;
        while c < self.padded {
            for b in self.part.0 / BLOCK..self.part.1.div_ceil(BLOCK) {
                // SAFETY: the blocks of the part have factors for the dimensions from `c` on, and weights are `[M][GROUP]`.
                unsafe {
                    let factor = V::load_bf16(s, scales[b].add(c / KV_SCALED * BLOCK));
                    for i in 0..M {
                        let weight = V::load(s, self.weights.add(i * GROUP + b * BLOCK));
                        weight.mul(s, factor).store(s, scaled[i].as_mut_ptr().add(b * BLOCK));
                    }
                }
            }
            let end = self.padded.min(c + KV_SCALED);
            self.all_columns(s, scaled.as_ptr().cast(), c, end);
            c = end;
        }
    }
}

impl<E: Element, const M: usize, const C: usize> Values<'_, E, M, C> {
    /// The dimensions `c..end`, whole vectors of them.
    #[inline(always)]
    fn all_columns<S: Isa>(&self, s: S, weights: *const f32, mut c: usize, end: usize) {
        while c + C * BLOCK <= end {
            self.columns::<S, C>(s, weights, c);
            c += C * BLOCK;
        }
        if C > 1 && c < end {
            self.columns::<S, 1>(s, weights, c);
        }
    }

    /// The dimensions `c..c + 16 * D`.
    #[inline(always)]
    fn columns<S: Isa, const D: usize>(&self, s: S, weights: *const f32, c: usize) {
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
            let mut row = self.values[at / BLOCK].wrapping_add(at % BLOCK * self.dim + c);
            let soon = match self.soon {
                Some(blocks) => blocks[at / BLOCK].wrapping_add(c * BLOCK),
                None => std::ptr::null(),
            };
            let end = self.part.1.min((at / BLOCK + 1) * BLOCK);
            while at < end {
                // SAFETY: `at % 16` is a position of the block, the columns lie in its row or less than a vector past it,
                // and `at` in the group.
                unsafe {
                    let mut v = [V::splat(s, 0.0); D];
                    for j in 0..D {
                        v[j] = E::load(s, row.add(j * BLOCK));
                    }
                    let lines =
                        if self.soon.is_some() { (D * BLOCK * size_of::<E>()).div_ceil(LINE) } else { 0 };
                    for line in 0..lines {
                        let at = at % BLOCK * D * BLOCK;
                        s.prefetch(soon.wrapping_add(at).cast::<u8>().wrapping_add(line * LINE));
                    }
                    for i in 0..M {
                        let weight = V::splat(s, *weights.add(i * GROUP + at));
                        for j in 0..D {
                            sums[i][j] = weight.fma(s, v[j], sums[i][j]);
                        }
                    }
                }
                row = row.wrapping_add(self.dim);
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
