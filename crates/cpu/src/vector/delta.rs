//! The gated delta rule over ragged batches with recurrent state.
//!
//! A column of a head's matrix goes through the rows by itself, so columns lie in lanes and are divided over workers. Some
//! columns are loaded once for all rows of a sequence in a step and stay in the L1 cache; each row passes over them once,
//! which corrects them, reads them with the row's query, and with the next row's key. Every sum walks the key's elements
//! in order, whatever rows a step has: a row's bits do not depend on where a step began.

use super::math;
use super::norm::sum_of_squares;
use super::rows::{Rows, RowsMut};
use super::segments::Segments;
use crate::isa::{CpuIsa, Isa, Kernel, VIRTUAL_LANES};
use crate::memory::SharedSlice;
use std::cell::Cell;
use std::ops::Range;

/// Columns of a part of the work: a cache line.
const DELTA_PART: usize = 16;

/// [`tensor::Op::GatedDeltaRule`]: for each head, with keys and queries of unit length,
/// `S = exp(log_decay) S; S += k (beta (v - S^T k))^T; out = scale S^T q`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRule<'a> {
    /// `[rows, key heads x dk]`
    pub q: Rows<'a>,
    /// `[rows, key heads x dk]`
    pub k: Rows<'a>,
    /// `[rows, heads x dv]`
    pub v: Rows<'a>,
    /// `[rows, heads]`
    pub log_decay: Rows<'a>,
    /// `[rows, heads]`
    pub beta: Rows<'a>,
    /// Elements of a key.
    pub dk: usize,
    /// Elements of a value.
    pub dv: usize,
    /// Multiplier of the queries.
    pub scale: f32,
    /// Added to sums of squares.
    pub eps: f32,
    /// The rows of each sequence, and where its state is.
    pub segments: Segments<'a>,
}

impl DeltaRule<'_> {
    /// Heads of values and of the state.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.beta.dim()
    }

    /// Parts of the work, of sixteen columns or what is left of a head.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.heads() * self.dv.div_ceil(DELTA_PART)
    }
}

/// Computes some parts of a [`DeltaRule`].
///
/// `state` is `[slots, heads, dk, dv]`. `out` is `[rows, heads x dv]`; only columns of these parts are written.
///
/// # Safety
/// Nobody else reads or writes these columns of `state` meanwhile, and no sequence reads a slot that a row of another
/// sequence of the batch stores to.
///
/// # Panics
/// When shapes do not fit together or a slot does not exist.
pub unsafe fn delta_rule(
    isa: CpuIsa,
    rule: DeltaRule<'_>,
    state: SharedSlice<'_, f32>,
    parts: Range<usize>,
    out: RowsMut<'_>,
) {
    let (rows, heads) = (out.rows(), rule.heads());
    assert!(rule.dk > 0 && rule.dv > 0, "keys and values have elements");
    let used = rule.segments.used(rows);
    let key_heads = rule.k.dim() / rule.dk;
    assert_eq!(rule.k.dim(), key_heads * rule.dk, "keys of {} elements", rule.dk);
    assert!(heads == 0 || key_heads > 0 && heads.is_multiple_of(key_heads), "as many heads for each key");
    assert_eq!((rule.q.rows(), rule.q.dim()), (rule.k.rows(), rule.k.dim()), "a query for each key");
    assert_eq!((rule.v.rows(), rule.v.dim()), (rows, heads * rule.dv), "a value for each row and head");
    assert_eq!(out.dim(), rule.v.dim(), "a result for each value");
    assert_eq!((rule.log_decay.rows(), rule.log_decay.dim()), (rows, heads), "a decay for each row and head");
    assert_eq!((rule.beta.rows(), rule.k.rows()), (rows, rows), "a key for each row");
    assert!(parts.start <= parts.end && parts.end <= rule.parts(), "parts {parts:?} of {}", rule.parts());
    let mut scratch = SCRATCH.take();
    isa.run(Parts { rule, state, parts, out, used, scratch: &mut scratch });
    SCRATCH.set(scratch);
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read through pointers")] [f32; DELTA_PART]);

/// What the rows of a sequence multiply one head by.
#[derive(Clone, Copy)]
struct Factors {
    decay: f32,
    /// Of what the key as it comes recalls of the state before it decays.
    recall: f32,
    /// Of what the key as it comes adds.
    add: f32,
    /// Of what the query as it comes reads.
    read: f32,
}

#[derive(Default)]
struct Scratch {
    tile: Vec<Line>,
    factors: Vec<Factors>,
}

thread_local! {
    /// Memory kept from call to call.
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { tile: Vec::new(), factors: Vec::new() }) };
}

#[inline(always)]
fn length<S: Isa>(s: S, x: &[f32], eps: f32) -> f64 {
    // SAFETY: a slice is readable.
    let squares = unsafe { sum_of_squares(s, x.as_ptr(), x.len()) };
    (f64::from(squares) + f64::from(eps)).sqrt()
}

struct Parts<'a> {
    rule: DeltaRule<'a>,
    state: SharedSlice<'a, f32>,
    parts: Range<usize>,
    out: RowsMut<'a>,
    used: usize,
    scratch: &'a mut Scratch,
}

impl Kernel for Parts<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        let each = self.rule.dv.div_ceil(DELTA_PART);
        let mut part = self.parts.start;
        while part < self.parts.end {
            let (head, first) = (part / each, part % each);
            let last = (first + self.parts.end - part).min(each);
            let columns = first * DELTA_PART..self.rule.dv.min(last * DELTA_PART);
            self.head(s, head, columns.clone());
            let columns = head * self.rule.dv + columns.start..head * self.rule.dv + columns.end;
            for row in self.used..self.out.rows() {
                self.out.row(row)[columns.clone()].fill(0.0);
            }
            part += last - first;
        }
    }
}

/// Some rows of a sequence, and columns of a head.
#[derive(Clone, Copy)]
struct Tile {
    head: usize,
    /// The first row, and how many.
    row: usize,
    rows: usize,
    /// `None` where the sequence starts.
    slot: Option<u32>,
    column: usize,
    /// Columns, of which the last vector may have a part.
    width: usize,
}

impl Parts<'_> {
    #[inline(always)]
    fn head<S: Isa>(&mut self, s: S, head: usize, columns: Range<usize>) {
        let mut row = 0;
        let segments = self.rule.segments;
        for (&extent, &slot) in segments.extents.iter().zip(segments.slots) {
            let rows = extent as usize;
            if rows == 0 {
                continue;
            }
            self.factors(s, head, row..row + rows);
            let slot = (segments.pos[row] > 0).then_some(slot);
            let mut column = columns.start;
            while column < columns.end {
                let width = columns.end - column;
                let tile = |width| Tile { head, row, rows, slot, column, width };
                // A tile's sums stay in registers, and it fits a cache of 32 KiB where keys have 128 elements.
                column += if const { S::LANES < DELTA_PART } {
                    self.tile::<S, 2>(s, tile(width.min(2 * S::LANES)))
                } else if width > 2 * DELTA_PART {
                    self.tile::<S, 4>(s, tile(width.min(4 * S::LANES)))
                } else if width > DELTA_PART {
                    self.tile::<S, 2>(s, tile(width.min(2 * S::LANES)))
                } else {
                    self.tile::<S, 1>(s, tile(width.min(S::LANES)))
                };
            }
            row += rows;
        }
    }

    #[inline(always)]
    fn factors<S: Isa>(&mut self, s: S, head: usize, rows: Range<usize>) {
        let DeltaRule { dk, scale, eps, .. } = self.rule;
        let at = self.key(head);
        self.scratch.factors.clear();
        for row in rows {
            let decay = math::exp(s, s.splat(self.rule.log_decay.row(row)[head]));
            let decay = {
                let mut lanes = [0f32; VIRTUAL_LANES];
                // SAFETY: room for the widest vector.
                unsafe { s.store(lanes.as_mut_ptr(), decay) };
                lanes[0]
            };
            let k = (1.0 / length(s, &self.rule.k.row(row)[at..at + dk], eps)) as f32;
            let read = (f64::from(scale) / length(s, &self.rule.q.row(row)[at..at + dk], eps)) as f32;
            let add = self.rule.beta.row(row)[head] * k;
            self.scratch.factors.push(Factors { decay, recall: decay * k, add, read });
        }
    }

    /// Where the key of a head starts in a row.
    #[inline(always)]
    fn key(&self, head: usize) -> usize {
        let key_heads = self.rule.k.dim() / self.rule.dk;
        head / (self.rule.heads() / key_heads) * self.rule.dk
    }

    /// The columns of a tile in a row of a slot.
    #[inline(always)]
    fn stored(&self, tile: &Tile, slot: u32, i: usize) -> Range<usize> {
        let DeltaRule { dk, dv, .. } = self.rule;
        let at = ((slot as usize * self.rule.heads() + tile.head) * dk + i) * dv + tile.column;
        at..at + tile.width
    }

    /// `G` vectors of columns through all rows; gives how many columns.
    #[inline(always)]
    fn tile<S: Isa, const G: usize>(&mut self, s: S, tile: Tile) -> usize {
        let dk = self.rule.dk;
        let lines = (dk * G * S::LANES).div_ceil(DELTA_PART);
        if self.scratch.tile.len() < lines {
            self.scratch.tile.resize(lines, Line([0.0; DELTA_PART]));
        }
        s.enter(TileOf::<G> { parts: self, tile });
        tile.width
    }
}

/// `G` vectors of columns through all rows.
struct TileOf<'a, 'p, const G: usize> {
    parts: &'a mut Parts<'p>,
    tile: Tile,
}

impl<const G: usize> Kernel for TileOf<'_, '_, G> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let TileOf { parts, tile } = self;
        let DeltaRule { dk, dv, segments, .. } = parts.rule;
        let (wide, at) = (G * S::LANES, parts.key(tile.head));
        let whole = tile.width == wide;
        let buffer = parts.scratch.tile.as_mut_ptr().cast::<f32>();
        let lanes = |g: usize| tile.width.saturating_sub(g * S::LANES).min(S::LANES);
        let state = parts.state;
        let k = |row: usize| parts.rule.k.row(row)[at..at + dk].as_ptr();
        let q = |row: usize| parts.rule.q.row(row)[at..at + dk].as_ptr();

        // What the first row's key recalls.
        let mut recalled = [s.splat(0.0); G];
        match tile.slot {
            // SAFETY: the buffer has `dk` rows of the tile.
            None => unsafe { std::ptr::write_bytes(buffer, 0, dk * wide) },
            Some(slot) => {
                let first = k(tile.row);
                for i in 0..dk {
                    // SAFETY: the caller vouches for these columns of the state.
                    let from = unsafe { state.part(parts.stored(&tile, slot, i)) }.as_ptr();
                    for (g, recalled) in recalled.iter_mut().enumerate() {
                        // SAFETY: `from` has the tile's columns, the buffer whole vectors, the key `dk` elements.
                        unsafe {
                            let x = if whole {
                                s.load(from.add(g * S::LANES))
                            } else {
                                s.load_partial(from.wrapping_add(g * S::LANES), lanes(g))
                            };
                            s.store(buffer.add(i * wide + g * S::LANES), x);
                            *recalled = s.fma(s.splat(*first.add(i)), x, *recalled);
                        }
                    }
                }
            }
        }
        for t in 0..tile.rows {
            let (row, last) = (tile.row + t, t + 1 == tile.rows);
            let factors = parts.scratch.factors[t];
            let column = tile.head * dv + tile.column;
            let v = parts.rule.v.row(row)[column..column + tile.width].as_ptr();
            let mut change = [s.splat(0.0); G];
            for g in 0..G {
                // SAFETY: the value has the tile's columns.
                let v = unsafe {
                    if whole {
                        s.load(v.add(g * S::LANES))
                    } else {
                        s.load_partial(v.wrapping_add(g * S::LANES), lanes(g))
                    }
                };
                change[g] = s.mul(s.fnma(recalled[g], s.splat(factors.recall), v), s.splat(factors.add));
            }
            let pass = Pass {
                dk,
                tile: buffer,
                k: k(row),
                q: q(row),
                next: k(if last { row } else { row + 1 }),
                soon: [q(if last { row } else { row + 1 }), k((row + 2).min(tile.row + tile.rows - 1))],
                decay: factors.decay,
            };
            let stored = segments.stored(row);
            // The last row's state goes straight to where it is kept.
            let direct = stored.filter(|_| last && whole);
            // SAFETY: the pointers are to `dk` elements each, the buffer holds `dk` rows of the tile, and so does the slot from
            // there, a row of the state apart; the caller vouches for these columns of the state.
            let read = unsafe {
                if let Some(slot) = direct {
                    let (first, last) = (parts.stored(&tile, slot, 0), parts.stored(&tile, slot, dk - 1));
                    let to = state.narrow(first.start..last.end).as_ptr();
                    pass.run::<S, G, false>(s, to, dv, &change, &mut recalled)
                } else {
                    pass.run::<S, G, true>(s, buffer, wide, &change, &mut recalled)
                }
            };
            let out = parts.out.row(row)[column..column + tile.width].as_mut_ptr();
            for (g, read) in read.into_iter().enumerate() {
                let y = s.mul(read, s.splat(factors.read));
                // SAFETY: the result has the tile's columns.
                unsafe {
                    if whole {
                        s.store(out.add(g * S::LANES), y);
                    } else {
                        s.store_partial(out.wrapping_add(g * S::LANES), y, lanes(g));
                    }
                }
            }
            if let Some(slot) = stored.filter(|_| direct.is_none()) {
                for i in 0..dk {
                    // SAFETY: the caller vouches for these columns of the state; the buffer has `dk` rows.
                    unsafe {
                        let to = state.part_mut(parts.stored(&tile, slot, i));
                        std::ptr::copy_nonoverlapping(buffer.add(i * wide), to.as_mut_ptr(), to.len());
                    }
                }
            }
        }
    }
}

/// A row's pass over a tile.
struct Pass {
    dk: usize,
    /// The tile, row after row.
    tile: *const f32,
    k: *const f32,
    q: *const f32,
    /// The next row's key.
    next: *const f32,
    /// What the pass after this one reads first.
    soon: [*const f32; 2],
    decay: f32,
}

impl Pass {
    /// Decays the tile, adds `k` times `change`, and stores it in rows `stride` apart, which may be the tile itself. Gives
    /// what `q` reads and, if `NEXT`, what the next key recalls.
    ///
    /// # Safety
    /// The keys and queries have `dk` elements; the tile has `dk` rows of `G` vectors, and `to` room for as many.
    #[inline(always)]
    unsafe fn run<S: Isa, const G: usize, const NEXT: bool>(
        &self,
        s: S,
        to: *mut f32,
        stride: usize,
        change: &[S::F; G],
        recalled: &mut [S::F; G],
    ) -> [S::F; G] {
        let decay = s.splat(self.decay);
        let (mut read, mut recall) = ([s.splat(0.0); G], [s.splat(0.0); G]);
        for line in (0..self.dk).step_by(DELTA_PART) {
            for soon in self.soon {
                s.prefetch(soon.wrapping_add(line).cast());
            }
            for i in line..self.dk.min(line + DELTA_PART) {
                // SAFETY: the caller's contract, for `i` below `dk`.
                unsafe {
                    let (k, q, next) =
                        (s.splat(*self.k.add(i)), s.splat(*self.q.add(i)), s.splat(*self.next.add(i)));
                    for g in 0..G {
                        let x = s.mul(decay, s.load(self.tile.add((i * G + g) * S::LANES)));
                        let x = s.fma(k, change[g], x);
                        s.store(to.add(i * stride + g * S::LANES), x);
                        read[g] = s.fma(q, x, read[g]);
                        if NEXT {
                            recall[g] = s.fma(next, x, recall[g]);
                        }
                    }
                }
            }
        }
        *recalled = recall;
        read
    }
}

#[cfg(test)]
mod tests;
