//! Dividing few rows with many keys over workers: by splits of the keys, merged in order.
//!
//! The splits of all tiles and kv heads stand in one row. As many as the memory holds are computed by whoever is free,
//! then merged, then come the next: a wave. A tile whose splits lie in two waves goes on from what was merged of it,
//! which are the bits of merging all at once.

use super::drive::{TILES_PER_WORKER, tile_rows, tiles};
use super::keys::partial_words;
use super::tile::{Merge, Target, Tile};
use super::{Attention, AttentionOut, KvLayout, SPLIT};
use crate::isa::CpuIsa;
use crate::memory::SharedSlice;
use crate::pool::Worker;
use std::ops::Range;

/// Splits of whole tiles that a wave holds for each worker, so that workers rarely wait for the last of a wave. The few
/// rows of decoding take a fraction of a tile each: their waves hold many times as many.
const WAVE: usize = 8;

/// Length of the `partials` of [`super::attention`] with which it is as fast as it can be: enough for any batch with
/// contexts up to `context`, on `workers`, or for waves that keep them busy.
#[must_use]
pub fn partials_len(layout: KvLayout, heads: usize, context: usize, workers: usize) -> usize {
    let group = heads / layout.kv_heads();
    let split = tile_rows(layout, group) * group * partial_words(layout.padded_dim());
    let tiles = workers * TILES_PER_WORKER / layout.kv_heads() + 1;
    let all = tiles.saturating_mul(layout.kv_heads()).saturating_mul(context.div_ceil(SPLIT));
    split * (CARRIES + all.min(workers * WAVE))
}

/// Places for what was merged of a tile in earlier waves: one wave reads one while it may write the other.
const CARRIES: usize = 2;

/// The splits of one tile and kv head.
struct Unit {
    rows: Range<usize>,
    kv_head: usize,
    splits: Range<usize>,
    /// Words of the softmaxes of a split.
    words: usize,
}

/// Some consecutive splits of a unit in a wave.
struct Piece {
    unit: usize,
    splits: Range<usize>,
    /// Where their softmaxes are in the memory of the wave.
    at: usize,
}

/// An attention divided by splits.
pub(super) struct BySplits<'a, 'b> {
    isa: CpuIsa,
    attention: &'b Attention<'a>,
    units: Vec<Unit>,
    carries: [SharedSlice<'b, f32>; CARRIES],
    wave: SharedSlice<'b, f32>,
    out: &'b AttentionOut<'a>,
}

impl<'a, 'b> BySplits<'a, 'b> {
    /// Whether `words` are enough for tiles of `rows` rows: for waves of at least one split.
    pub(super) fn fits(attention: &Attention<'_>, rows: usize, words: usize) -> bool {
        let longest = tiles(attention, rows).map(|tile| split_words(attention, &tile)).max();
        words >= (CARRIES + 1) * longest.unwrap_or(0)
    }

    /// With `partials` that fit.
    pub(super) fn new(
        isa: CpuIsa,
        attention: &'b Attention<'a>,
        rows: usize,
        partials: SharedSlice<'b, f32>,
        out: &'b AttentionOut<'a>,
    ) -> Self {
        let mut units = vec![];
        for tile in tiles(attention, rows) {
            let (splits, words) = (splits(attention, &tile), split_words(attention, &tile));
            let unit = |kv_head| Unit { rows: tile.clone(), kv_head, splits: splits.clone(), words };
            units.extend((0..attention.kv.layout().kv_heads()).map(unit));
        }
        let carry = units.iter().map(|unit| unit.words).max().unwrap_or(0);
        let carries = [partials.narrow(0..carry), partials.narrow(carry..2 * carry)];
        let wave = partials.narrow(2 * carry..partials.len());
        Self { isa, attention, units, carries, wave, out }
    }

    /// This worker's part.
    ///
    /// # Safety
    /// As [`super::attention`], of the `partials` too.
    pub(super) unsafe fn run(&self, worker: &Worker<'_>) {
        let mut next = (0, self.units.first().map_or(0, |unit| unit.splits.start));
        for number in 0.. {
            let pieces = self.pieces(&mut next);
            self.compute(worker, &pieces);
            worker.barrier();
            self.merge(worker, &pieces, number);
            if next.0 == self.units.len() {
                break;
            }
            worker.barrier();
        }
    }

    /// The splits from `next` (unit and split) on that the memory of a wave holds.
    fn pieces(&self, next: &mut (usize, usize)) -> Vec<Piece> {
        let (mut pieces, mut at) = (vec![], 0);
        while let Some(unit) = self.units.get(next.0) {
            let left = unit.splits.end - next.1;
            let count = left.min((self.wave.len() - at) / unit.words.max(1));
            if count == 0 && left > 0 {
                break;
            }
            pieces.push(Piece { unit: next.0, splits: next.1..next.1 + count, at });
            at += count * unit.words;
            if count < left {
                next.1 += count;
                break;
            }
            *next = (next.0 + 1, self.units.get(next.0 + 1).map_or(0, |unit| unit.splits.start));
        }
        pieces
    }

    fn compute(&self, worker: &Worker<'_>, pieces: &[Piece]) {
        let items = pieces.iter().map(|piece| piece.splits.len()).sum();
        let (mut piece, mut first) = (0, 0);
        // The next split of the keys is mostly the same worker's: it fetches ahead.
        while let Some(item) = worker.claim_near(items, 1, 1) {
            if item.start < first {
                (piece, first) = (0, 0);
            }
            while item.start >= first + pieces[piece].splits.len() {
                first += pieces[piece].splits.len();
                piece += 1;
            }
            let Piece { unit, splits, at } = &pieces[piece];
            let words = self.units[*unit].words;
            let at = at + (item.start - first) * words;
            let split = splits.start + item.start - first;
            self.tile(*unit, Target::Split(split, self.wave.narrow(at..at + words)));
        }
    }

    fn merge(&self, worker: &Worker<'_>, pieces: &[Piece], wave: usize) {
        while let Some(item) = worker.claim(pieces.len(), 1) {
            let Piece { unit: index, splits, at } = &pieces[item.start];
            let unit = &self.units[*index];
            let carry = |wave: usize| self.carries[wave % CARRIES].narrow(0..unit.words);
            let merge = Merge {
                splits: splits.len(),
                partials: self.wave.narrow(*at..at + splits.len() * unit.words),
                before: (splits.start > unit.splits.start).then(|| carry(wave)),
                after: (splits.end < unit.splits.end).then(|| carry(wave + 1)),
                out: self.out,
            };
            self.tile(*index, Target::Merge(merge));
        }
    }

    fn tile(&self, unit: usize, target: Target<'a, '_>) {
        let Unit { rows, kv_head, .. } = &self.units[unit];
        self.isa.run(Tile { attention: self.attention, rows: rows.clone(), kv_head: *kv_head, target });
    }
}

/// The splits that some row of a tile sees.
pub(super) fn splits(attention: &Attention<'_>, tile: &Range<usize>) -> Range<usize> {
    let seen = tile.clone().map(|row| attention.visible(row)).filter(|seen| !seen.is_empty());
    let (first, until) = seen.fold((usize::MAX, 0), |(a, b), seen| (a.min(seen.start), b.max(seen.end)));
    if first < until { first / SPLIT..until.div_ceil(SPLIT) } else { 0..0 }
}

/// Words of the softmaxes of one split, for one kv head of a tile.
fn split_words(attention: &Attention<'_>, tile: &Range<usize>) -> usize {
    tile.len() * attention.group() * partial_words(attention.kv.layout().padded_dim())
}
