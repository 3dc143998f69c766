//! The layout of KV blocks, and writing them.

use super::BLOCK;
use crate::isa::{CpuIsa, Isa, Kernel, VIRTUAL_LANES};
use crate::memory::SharedSlice;
use crate::vector::Rows;
use std::ops::Range;
pub use tensor::ops::KvType;
use tensor::ops::kv_cache::{KV_SCALED, q8_scale, q8_scales};

/// The layout of a block: a cell for each kv head, one after another.
///
/// A cell holds first the factors that undo the scaling of 16 keys, then of 16 values:
/// - [`KvType::F16`]: an f32 for each. Each (position, kv head) row is binary16 times a power of two that brings its largest
///   value to 2^14..2^15, so nothing overflows, and values down to 2^-28 of the largest keep all their bits.
/// - [`KvType::Q8_0`]: the scales, bfloat16, as `[dimensions / 32][16 positions]`.
///
/// Then come the keys as `[k_dim][16 positions]`, so that positions lie in vector lanes and dimensions are walked in order;
/// then the values as `[16 positions][v_dim]`, the other way round. Values are read in whole vectors, so a read may reach
/// up to 15 elements past a row: into the next row, the next cell, or the tail behind the last block.
///
/// The size of a block depends on the elements of a position alone, not on how many of them are the key: whoever
/// allocates a cache need not know it. So there may be room for one scale more than a [`KvType::Q8_0`] cell has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayout {
    kind: KvType,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
}

/// Words behind the last block that may be read.
const TAIL_WORDS: usize = VIRTUAL_LANES;

impl KvLayout {
    /// The layout for `kv_heads` heads with keys of `k_dim` elements and values of `v_dim`.
    ///
    /// # Panics
    /// When any is 0.
    #[must_use]
    pub fn new(kind: KvType, kv_heads: usize, k_dim: usize, v_dim: usize) -> Self {
        assert!(kv_heads > 0 && k_dim > 0 && v_dim > 0, "a KV cache needs heads and dimensions");
        Self { kind, kv_heads, k_dim, v_dim }
    }

    /// How values are stored.
    #[must_use]
    pub fn kind(&self) -> KvType {
        self.kind
    }

    /// Key and value heads.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Elements of a key.
    #[must_use]
    pub fn k_dim(&self) -> usize {
        self.k_dim
    }

    /// Elements of a value.
    #[must_use]
    pub fn v_dim(&self) -> usize {
        self.v_dim
    }

    /// Size of a block of 16 positions, keys and values together, in 4-byte words.
    #[must_use]
    pub fn block_words(&self) -> usize {
        self.kv_heads * self.cell_words()
    }

    /// Size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        4 * self.block_words()
    }

    /// Words of a pool of so many blocks; `None` when that is more than can be addressed.
    #[must_use]
    pub fn pool_words(&self, blocks: usize) -> Option<usize> {
        blocks.checked_mul(self.block_words())?.checked_add(TAIL_WORDS)
    }

    /// Elements that a sum of values takes, padded to whole vectors.
    pub(super) fn padded_dim(&self) -> usize {
        self.v_dim.next_multiple_of(VIRTUAL_LANES)
    }

    fn scale_words(&self) -> usize {
        match self.kind {
            KvType::F32 => 0,
            KvType::F16 => 2 * BLOCK,
            KvType::Q8_0 => q8_scales(self.k_dim + self.v_dim) * BLOCK / 2,
        }
    }

    fn cell_words(&self) -> usize {
        let elements = BLOCK * (self.k_dim + self.v_dim);
        let words = match self.kind {
            KvType::F32 => elements,
            KvType::F16 => elements / 2,
            KvType::Q8_0 => elements / 4,
        };
        self.scale_words() + words
    }
}

/// Blocks in memory.
#[derive(Debug, Clone, Copy)]
pub struct KvPool<'a> {
    layout: KvLayout,
    words: SharedSlice<'a, f32>,
}

/// Where the parts of a cell start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<T> {
    /// Factors of the 16 keys, then of the 16 values, as [`KvLayout`] says. None of [`KvType::F32`].
    pub(super) scales: *mut f32,
    pub(super) keys: *mut T,
    pub(super) values: *mut T,
}

impl<'a> KvPool<'a> {
    /// The blocks in `words`, as many as [`KvLayout::pool_words`] says. Fresh blocks need no particular content.
    ///
    /// # Panics
    /// When `words` is not whole blocks and their tail.
    #[must_use]
    pub fn new(layout: KvLayout, words: SharedSlice<'a, f32>) -> Self {
        let blocks = words.len().checked_sub(TAIL_WORDS);
        let whole = blocks.is_some_and(|words| words.is_multiple_of(layout.block_words()));
        assert!(whole, "the KV pool is not whole blocks and their tail");
        Self { layout, words }
    }

    /// How the blocks are laid out.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        (self.words.len() - TAIL_WORDS) / self.layout.block_words()
    }

    /// The parts of a cell; `T` is the element of the layout's kind.
    ///
    /// # Panics
    /// When there is no such block or head.
    #[inline(always)]
    pub(super) fn cell<T>(&self, block: usize, head: usize) -> Cell<T> {
        let layout = &self.layout;
        assert!(block < self.blocks(), "KV block {block} of {}", self.blocks());
        assert!(head < layout.kv_heads);
        let start = block * layout.block_words() + head * layout.cell_words();
        // In bounds by the assertions.
        let scales = self.words.as_ptr().wrapping_add(start);
        let keys = scales.wrapping_add(layout.scale_words()).cast::<T>();
        Cell { scales, keys, values: keys.wrapping_add(BLOCK * layout.k_dim) }
    }
}

/// The blocks of each sequence: `per_seq` entries each, block `i` holding positions `16 i` to `16 i + 15`.
#[derive(Debug, Clone, Copy)]
pub struct PageTable<'a> {
    /// `[sequences, per_seq]`. Entries of positions that nothing reads or writes may hold anything.
    pub pages: &'a [u32],
    /// Entries for each sequence.
    pub per_seq: usize,
}

impl PageTable<'_> {
    /// The block that holds positions `16 index` to `16 index + 15` of sequence `seq`.
    ///
    /// # Panics
    /// When the table has no such entry.
    #[inline(always)]
    pub(super) fn block(&self, seq: u32, index: usize) -> usize {
        assert!(index < self.per_seq, "page {index} of {}", self.per_seq);
        self.pages[seq as usize * self.per_seq + index] as usize
    }
}

/// Keys and values to be stored.
#[derive(Debug, Clone, Copy)]
pub struct KvWrite<'a> {
    /// `[rows, kv_heads * k_dim]`; rows from `seq.len()` on are padding.
    pub k: Rows<'a>,
    /// `[rows, kv_heads * v_dim]`
    pub v: Rows<'a>,
    /// The cache.
    pub kv: KvPool<'a>,
    /// For each row, the row of `pages` of its sequence.
    pub seq: &'a [u32],
    /// For each row, the position it is stored at.
    pub pos: &'a [u32],
    /// The blocks of each sequence.
    pub pages: PageTable<'a>,
}

/// Stores some of the rows for some of the kv heads.
///
/// # Safety
/// Nobody else reads or writes these positions of these heads meanwhile, and no two rows have one position.
///
/// # Panics
/// When shapes do not fit together or a page does not exist.
pub unsafe fn kv_write(isa: CpuIsa, write: &KvWrite<'_>, rows: Range<usize>, heads: Range<usize>) {
    let layout = write.kv.layout();
    assert_eq!(write.k.dim(), layout.kv_heads * layout.k_dim, "a key for each kv head");
    let values = (write.k.rows(), layout.kv_heads * layout.v_dim);
    assert_eq!((write.v.rows(), write.v.dim()), values, "a value for each key");
    assert_eq!(write.seq.len(), write.pos.len(), "a sequence and a position for each row");
    let rows = rows.start..rows.end.min(write.seq.len());
    isa.run(Write { write, rows, heads });
}

struct Write<'a> {
    write: &'a KvWrite<'a>,
    rows: Range<usize>,
    heads: Range<usize>,
}

impl Kernel for Write<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let Self { write, rows, heads } = self;
        let layout = write.kv.layout();
        let (k_dim, v_dim) = (layout.k_dim, layout.v_dim);
        // Heads outside: a head's part of a block stays in the nearest cache while its rows go in.
        for head in heads {
            for row in rows.clone() {
                let block = write.pages.block(write.seq[row], write.pos[row] as usize / BLOCK);
                let lane = write.pos[row] as usize % BLOCK;
                let k = write.k.columns(head * k_dim..(head + 1) * k_dim).row(row);
                let v = write.v.columns(head * v_dim..(head + 1) * v_dim).row(row);
                match layout.kind {
                    KvType::F32 => {
                        let cell = write.kv.cell::<f32>(block, head);
                        // SAFETY: `lane` is one of the cell's 16 positions and the rows have the layout's widths; the
                        // caller vouches that the position is ours.
                        unsafe {
                            store_keys(&cell, lane, 0, k);
                            store_values(&cell, lane, 0, v, v_dim);
                        }
                    }
                    KvType::F16 => {
                        let cell = write.kv.cell::<u16>(block, head);
                        // SAFETY: as above; the factors of a position are its own as well.
                        unsafe {
                            *cell.scales.add(lane) = to_f16(s, k, |at, halves| {
                                store_keys(&cell, lane, at, halves);
                            });
                            *cell.scales.add(BLOCK + lane) = to_f16(s, v, |at, halves| {
                                store_values(&cell, lane, at, halves, v_dim);
                            });
                        }
                    }
                    KvType::Q8_0 => {
                        let cell = write.kv.cell::<u8>(block, head);
                        let scales = cell.scales.cast::<u16>().wrapping_add(lane);
                        // SAFETY: as above; there is a scale for each position and 32 dimensions, of the values behind those
                        // of the keys.
                        unsafe {
                            to_q8(s, k, scales, |at, codes| store_keys(&cell, lane, at, codes));
                            let scales = scales.add(BLOCK * k_dim.div_ceil(KV_SCALED));
                            to_q8(s, v, scales, |at, codes| store_values(&cell, lane, at, codes, v_dim));
                        }
                    }
                }
            }
        }
    }
}

/// Elements from number `at` of a key.
///
/// # Safety
/// The position `lane` of the cell must be writable, `lane` below 16, and the key have these elements.
#[inline(always)]
unsafe fn store_keys<T: Copy>(cell: &Cell<T>, lane: usize, at: usize, k: &[T]) {
    for (d, &value) in (at..).zip(k) {
        // SAFETY: the cell has 16 positions for each dimension.
        unsafe { *cell.keys.add(BLOCK * d + lane) = value };
    }
}

/// Elements from number `at` of a value, which has `dim`.
///
/// # Safety
/// As [`store_keys`].
#[inline(always)]
unsafe fn store_values<T: Copy>(cell: &Cell<T>, lane: usize, at: usize, v: &[T], dim: usize) {
    // SAFETY: the cell has `dim` elements for each of 16 positions.
    unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), cell.values.add(dim * lane + at), v.len()) };
}

/// Rounds `x` times a power of two to binary16, gives `store` some of it with the number of its first element, and returns
/// the factor that undoes it. An infinity or NaN stays one.
#[inline(always)]
fn to_f16<S: Isa>(s: S, x: &[f32], store: impl Fn(usize, &[u16])) -> f32 {
    let largest = largest(x);
    // The largest value becomes 2^14 to 2^15. Both powers of two are kept normal: a row whose largest value is below 2^-112
    // becomes smaller than that.
    let exponent = (14 + 127 - (largest >> 23) as i32).min(126);
    let power = |e: i32| f32::from_bits(((127 + e) as u32) << 23);
    let up = s.splat(power(exponent));
    let mut halves = [0; VIRTUAL_LANES];
    let mut i = 0;
    while i < x.len() {
        let n = (x.len() - i).min(S::LANES);
        // SAFETY: `n` values are left at `i`; `halves` holds the widest vector.
        unsafe { s.store_f16(halves.as_mut_ptr(), s.mul(s.load_partial(x.as_ptr().add(i), n), up)) };
        store(i, &halves[..n]);
        i += n;
    }
    power(-exponent)
}

/// The bits of the largest magnitude: as bits, sizes are in order, and NaN is largest.
#[inline(always)]
fn largest(x: &[f32]) -> u32 {
    x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff))
}

/// Quantises `x` as [`tensor::ops::kv_cache::q8_block`] does, 32 elements at a time; their scales go to every 16th place of
/// `scales`, and `store` is given some of the codes with the number of the first.
///
/// # Safety
/// `scales` must be writable at these places.
#[inline(always)]
unsafe fn to_q8<S: Isa>(s: S, x: &[f32], scales: *mut u16, store: impl Fn(usize, &[u8])) {
    let mut codes = [0; VIRTUAL_LANES];
    for (block, part) in x.chunks(KV_SCALED).enumerate() {
        let scale = q8_scale(f32::from_bits(largest(part)));
        // SAFETY: the caller's contract.
        unsafe { *scales.add(BLOCK * block) = scale.to_bits() };
        let scale = s.splat(scale.to_f32());
        let mut i = 0;
        while i < part.len() {
            let n = (part.len() - i).min(S::LANES);
            // Beyond all integers and NaN become `i32::MIN`, of which the low byte is 0.
            // SAFETY: `n` values are left at `i`; `codes` holds the widest vector.
            unsafe {
                let v = s.load_partial(part.as_ptr().add(i), n);
                s.store_low_bytes(codes.as_mut_ptr(), s.round_i(s.div(v, scale)));
            }
            store(block * KV_SCALED + i, &codes[..n]);
            i += n;
        }
    }
}
