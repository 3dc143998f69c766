//! Dividing attention over workers.

use super::splits::{BySplits, splits};
use super::tile::{MAX_ROWS, Target, Tile};
use super::{Attention, AttentionOut, KvLayout};
use crate::isa::CpuIsa;
use crate::memory::SharedSlice;
use crate::pool::Worker;
use crate::quant::ActBlock;
use bytemuck::Zeroable;
use std::ops::Range;

/// Values of all queries of a tile at most: with the sums of values beside them they stay in L2.
const TILE_VALUES: usize = 64 * 128;
/// A batch with fewer tiles for each worker is cut into splits, so that all workers have something to do.
pub(super) const TILES_PER_WORKER: usize = 4;

/// Computes `attention` into `out`, `[rows, heads * v_dim]`. Every worker of a job calls this with the same arguments;
/// it claims in both ways, and the output is complete after the next barrier.
///
/// `partials` is memory for dividing few rows with many keys over the workers; [`super::partials_len`] says how much is
/// useful. With less they meet more often, and with very little such batches run on fewer workers. The results have the
/// same bits.
///
/// # Safety
/// Nobody writes the queries or the visible keys, or uses the output or `partials`, until every worker has passed the
/// barrier that follows; a barrier lies between this call and earlier claims.
///
/// # Panics
/// When shapes do not fit together or a visible position has no page.
pub unsafe fn attention(
    isa: CpuIsa,
    attention: &Attention<'_>,
    worker: &Worker<'_>,
    partials: SharedSlice<'_, f32>,
    out: &AttentionOut<'_>,
) {
    attention.check(out);
    let kv_heads = attention.kv.layout().kv_heads();
    let padding = attention.seq.len()..out.rows.rows();
    if worker.index() == 0 {
        for row in padding {
            // SAFETY: padding rows belong to no tile.
            let (mut rows, blocks) = unsafe { (out.rows.alias(), out.blocks(row, 0..out.rows.dim())) };
            rows.row(row).fill(0.0);
            blocks.unwrap_or_default().fill(ActBlock::zeroed());
        }
    }

    // Few tiles: divide them by splits, if the memory for that is there.
    let rows = tile_rows(attention.kv.layout(), attention.group());
    let tiles = tiles(attention, rows).count();
    let few = worker.count() > 1 && tiles * kv_heads < worker.count() * TILES_PER_WORKER;
    // Where no tile has two splits there is nothing to divide, and merging would cost a barrier.
    let whole = || self::tiles(attention, rows).all(|tile| splits(attention, &tile).len() < 2);
    if few && !whole() && BySplits::fits(attention, rows, partials.len()) {
        // SAFETY: the caller's contract.
        unsafe { BySplits::new(isa, attention, rows, partials, out).run(worker) };
        return;
    }

    // The tiles at the end of a prompt see most: they go first.
    let items = tiles * kv_heads;
    let mut ahead = tiles_from_end(attention, rows);
    let mut taken = 0;
    let mut tile = 0..0;
    while let Some(item) = worker.claim(items, 1) {
        let wanted = item.start / kv_heads + 1;
        while taken < wanted {
            tile = ahead.next().expect("an item of every tile");
            taken += 1;
        }
        let kv_head = item.start % kv_heads;
        isa.run(Tile { attention, rows: tile.clone(), kv_head, target: Target::Output(out) });
    }
}

/// Rows of a tile.
pub(super) fn tile_rows(layout: KvLayout, group: usize) -> usize {
    (TILE_VALUES / (group * layout.k_dim().max(layout.v_dim()))).clamp(1, MAX_ROWS)
}

/// Runs of at most `rows` rows of one sequence.
pub(super) fn tiles<'a>(
    attention: &'a Attention<'_>,
    rows: usize,
) -> impl Iterator<Item = Range<usize>> + 'a {
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
