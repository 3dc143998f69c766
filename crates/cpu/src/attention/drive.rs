//! Dividing attention over workers.

use super::tile::{MAX_ROWS, Target, Tile, partial_words};
use super::{Attention, KvLayout, SPLIT};
use crate::isa::CpuIsa;
use crate::memory::SharedSlice;
use crate::pool::Worker;
use crate::vector::RowsMut;
use std::ops::Range;

/// Values of all queries of a tile at most: with the sums of values beside them they stay in L2.
const TILE_VALUES: usize = 64 * 128;
/// A batch with fewer tiles for each worker is cut into splits, so that all workers have something to do.
const TILES_PER_WORKER: usize = 4;

/// Computes `attention` into `out`, `[rows, heads * v_dim]`. Every worker of a job calls this with the same arguments;
/// it uses claim slots 0 and 1, and the output is complete after the next barrier.
///
/// `partials` is memory for dividing few rows with many keys over the workers; [`partials_len`] says how much that takes.
/// With less, such batches run on fewer workers. The results have the same bits.
///
/// # Safety
/// Nobody writes the queries or the visible keys, or uses the output or `partials`, until every worker has passed the
/// barrier that follows; a barrier lies between this call and earlier uses of those claim slots.
///
/// # Panics
/// When shapes do not fit together or a visible position has no page.
pub unsafe fn attention(
    isa: CpuIsa,
    attention: &Attention<'_>,
    worker: &Worker<'_>,
    partials: SharedSlice<'_, f32>,
    out: &RowsMut<'_>,
) {
    attention.check(out.rows(), out.dim());
    let kv_heads = attention.kv.layout().kv_heads();
    let padding = attention.seq.len()..out.rows();
    if worker.index() == 0 {
        for row in padding {
            // SAFETY: padding rows belong to no tile.
            unsafe { out.alias() }.row(row).fill(0.0);
        }
    }

    // Few tiles: divide them by splits, if the memory for that is there.
    let rows = tile_rows(attention.kv.layout(), attention.group());
    let tiles = tiles(attention, rows).count();
    let few = worker.count() > 1 && tiles * kv_heads < worker.count() * TILES_PER_WORKER;
    if few && tiles_words(attention, rows) <= partials.len() {
        // SAFETY: the caller's contract.
        unsafe { by_splits(isa, attention, worker, partials, out, rows) };
        return;
    }

    // The tiles at the end of a prompt see most: they go first.
    let items = tiles * kv_heads;
    let mut ahead = tiles_from_end(attention, rows);
    let mut taken = 0;
    let mut tile = 0..0;
    while let Some(item) = worker.claim(0, items, 1) {
        let wanted = item.start / kv_heads + 1;
        while taken < wanted {
            tile = ahead.next().expect("an item of every tile");
            taken += 1;
        }
        let kv_head = item.start % kv_heads;
        isa.run(Tile { attention, rows: tile.clone(), kv_head, target: Target::Output(out) });
    }
}

/// Length of the `partials` of [`attention`] that is enough for any batch with contexts up to `context`, on `workers`.
#[must_use]
pub fn partials_len(layout: KvLayout, heads: usize, context: usize, workers: usize) -> usize {
    let words = partial_words(layout.padded_dim());
    let rows = tile_rows(layout, heads / layout.kv_heads());
    let tiles = workers * TILES_PER_WORKER / layout.kv_heads() + 1;
    tiles * rows * heads * context.div_ceil(SPLIT) * words
}

/// Rows of a tile.
fn tile_rows(layout: KvLayout, group: usize) -> usize {
    (TILE_VALUES / (group * layout.k_dim().max(layout.v_dim()))).clamp(1, MAX_ROWS)
}

/// Runs of at most `rows` rows of one sequence.
fn tiles<'a>(attention: &'a Attention<'_>, rows: usize) -> impl Iterator<Item = Range<usize>> + 'a {
    let seq = attention.seq;
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = seq.get(at)?;
        let len = seq[at..].iter().take(rows).take_while(|&s| s == first).count();
        at += len;
        Some(at - len..at)
    })
}

/// The same kind of runs, counted from the last row on. There are as many for each sequence.
fn tiles_from_end<'a>(attention: &'a Attention<'_>, rows: usize) -> impl Iterator<Item = Range<usize>> + 'a {
    let seq = attention.seq;
    let mut end = seq.len();
    std::iter::from_fn(move || {
        let last = seq[..end].last()?;
        let len = seq[..end].iter().rev().take(rows).take_while(|&s| s == last).count();
        end -= len;
        Some(end..end + len)
    })
}

/// The splits that some row of a tile sees.
fn splits(attention: &Attention<'_>, tile: &Range<usize>) -> Range<usize> {
    let seen = tile.clone().map(|row| attention.visible(row)).filter(|seen| !seen.is_empty());
    let (first, until) = seen.fold((usize::MAX, 0), |(a, b), seen| (a.min(seen.start), b.max(seen.end)));
    if first < until { first / SPLIT..until.div_ceil(SPLIT) } else { 0..0 }
}

/// Words of the partial results of one kv head of a tile, for each split.
fn split_words(attention: &Attention<'_>, tile: &Range<usize>) -> usize {
    tile.len() * attention.group() * partial_words(attention.kv.layout().padded_dim())
}

fn tiles_words(attention: &Attention<'_>, rows: usize) -> usize {
    let kv_heads = attention.kv.layout().kv_heads();
    tiles(attention, rows)
        .map(|tile| kv_heads * splits(attention, &tile).len() * split_words(attention, &tile))
        .sum()
}

/// # Safety
/// As [`attention`]; `partials` is long enough.
unsafe fn by_splits(
    isa: CpuIsa,
    attention: &Attention<'_>,
    worker: &Worker<'_>,
    partials: SharedSlice<'_, f32>,
    out: &RowsMut<'_>,
    rows: usize,
) {
    let kv_heads = attention.kv.layout().kv_heads();
    // Items are numbered tile by tile, kv head by kv head, split by split, and so is their memory.
    let items = tiles(attention, rows).map(|tile| kv_heads * splits(attention, &tile).len()).sum();
    let mut claimed = worker.claim(0, items, 1);
    let (mut item, mut at) = (0, 0);
    for tile in tiles(attention, rows) {
        let words = split_words(attention, &tile);
        for kv_head in 0..kv_heads {
            for split in splits(attention, &tile) {
                if claimed.as_ref().is_some_and(|claimed| claimed.start == item) {
                    let place = partials.narrow(at..at + words);
                    isa.run(Tile {
                        attention,
                        rows: tile.clone(),
                        kv_head,
                        target: Target::Split(split, place),
                    });
                    claimed = worker.claim(0, items, 1);
                }
                item += 1;
                at += words;
            }
        }
    }
    worker.barrier();

    let items = tiles(attention, rows).count() * kv_heads;
    let mut claimed = worker.claim(1, items, 1);
    let (mut item, mut at) = (0, 0);
    for tile in tiles(attention, rows) {
        let splits = splits(attention, &tile);
        let words = splits.len() * split_words(attention, &tile);
        for kv_head in 0..kv_heads {
            if claimed.as_ref().is_some_and(|claimed| claimed.start == item) {
                let target = Target::Merge(splits.clone(), partials.narrow(at..at + words), out);
                isa.run(Tile { attention, rows: tile.clone(), kv_head, target });
                claimed = worker.claim(1, items, 1);
            }
            item += 1;
            at += words;
        }
    }
}
