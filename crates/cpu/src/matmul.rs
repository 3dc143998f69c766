//! Products of activations with packed weights: y = x W^T, for one token or many.
//!
//! A product is computed for a range of lane groups (see [`crate::pack`]), so that a caller can split it over threads.
//! Every output is one sum that walks the inner dimension in order: its bits depend on its row of `x` and its row of W
//! alone, not on the number of tokens, the split, the threads or the instruction set.

mod codes;
#[allow(
    clippy::needless_range_loop,
    reason = "tiles are indexed by group and token in several arrays at once"
)]
mod format;
#[cfg(test)]
mod tests;
#[allow(
    clippy::needless_range_loop,
    reason = "tiles are indexed by group and token in several arrays at once"
)]
mod tile;

use crate::isa::{CpuIsa, Isa, Kernel, VIRTUAL_LANES};
use crate::memory::SharedSlice;
use crate::pack::PackedMatrix;
use crate::pool::Worker;
use crate::quant::{ActBlock, BLOCK};
use codes::{Five, Floats, Four, Signs, Six, Three, Two};
use format::{
    Affine, Coded, E4m3Halves, Eight, Exponent, Format, Half, Signed, Single, SuperAffine, SuperHalves,
    SuperSigned, SuperSymmetric, Symmetric,
};
use std::marker::PhantomData;
use std::ops::Range;
use tensor::DType;
use tile::{Ahead, Bf16, Exact, F16, F32, Fast, Plain, Tile};

/// Rows of activations, as long as the matrix's inner dimension k.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// f32 rows, `stride` elements apart: products are `acc = fma(w, x, acc)` with the exact weights.
    F32 {
        /// The rows.
        data: &'a [f32],
        /// Elements from the start of a row to the start of the next, at least k.
        stride: usize,
    },
    /// Rows of k / 32 blocks from [`crate::quant::quantise_row`], one after another: products are integer products. For
    /// quantised weights only.
    Quantised(&'a [ActBlock]),
}

/// Which rows of activations are multiplied, and to which rows of the output they go.
#[derive(Clone, Copy, Debug)]
pub struct RowMap<'a> {
    /// How many rows.
    pub count: usize,
    /// The row of activations of each; in order from row 0 when absent.
    pub input: Option<&'a [u32]>,
    /// The row of the output of each, without repetition; in order from row 0 when absent.
    pub output: Option<&'a [u32]>,
}

impl RowMap<'_> {
    /// The first `count` rows, to the first `count` rows.
    pub const fn first(count: usize) -> RowMap<'static> {
        RowMap { count, input: None, output: None }
    }
}

/// Where products go: column `from` of row `r` of the output is element `r * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The whole output.
    pub data: SharedSlice<'a, f32>,
    /// Elements from the start of a row to the start of the next.
    pub stride: usize,
    /// Columns of the product before the first of a row here.
    pub from: usize,
}

/// y = x W^T (+ bias) on the calling thread, into rows of `w.n()` elements.
///
/// # Panics
/// As [`matmul_groups`].
pub fn matmul(w: &PackedMatrix, x: Activations<'_>, rows: RowMap<'_>, bias: Option<&[f32]>, out: &mut [f32]) {
    let out = Output { data: SharedSlice::new(out), stride: w.n(), from: 0 };
    // SAFETY: the output is borrowed exclusively, and nobody else computes.
    unsafe { matmul_groups(w, 0..w.groups(), x, rows, bias, out) }
}

/// y = x W^T (+ bias) for the rows of W in a range of lane groups.
///
/// `bias` has `w.n()` elements, added after the sum.
///
/// # Safety
/// While the call runs, nobody else may read or write the outputs of these lane groups in the rows of the output that
/// `rows` names. Concurrent calls on disjoint groups or rows of one output are fine.
///
/// # Panics
/// When rows, groups or lengths lie outside what the matrix, the activations or the output have, and when plain
/// weights meet quantised activations.
pub unsafe fn matmul_groups(
    w: &PackedMatrix,
    groups: Range<usize>,
    x: Activations<'_>,
    rows: RowMap<'_>,
    bias: Option<&[f32]>,
    out: Output<'_>,
) {
    assert!(
        groups.start <= groups.end && groups.end <= w.groups(),
        "{groups:?} of {} lane groups",
        w.groups()
    );
    assert!(bias.is_none_or(|bias| bias.len() == w.n()), "a bias of another length than {}", w.n());
    let columns = groups.start * w.lanes()..w.n().min(groups.end * w.lanes());
    assert!(out.from <= columns.start, "columns {columns:?} go where those from {} on do", out.from);
    let width = columns.end - out.from;
    assert!(width <= out.stride, "an output row is too short");
    let rows = Rows::new(w, x, rows, &out, width);
    if rows.count > 0 && !groups.is_empty() {
        w.isa().run(Product { w, groups, x, rows, bias, out });
    }
}

/// The next lane groups of a worker, out of `total` of about `group_bytes` each, for a product of so many rows. All workers
/// of a job call this until it gives nothing, once between two barriers.
#[must_use]
pub fn claim_groups(
    worker: &Worker<'_>,
    total: usize,
    group_bytes: usize,
    rows: usize,
) -> Option<Range<usize>> {
    // Few rows take little longer than reading the weights, which goes best without a break: Q4_K 73 GB/s instead of 71.
    let bytes: usize = if rows > 4 { 64 << 10 } else { 256 << 10 };
    let chunk = chunk(worker, total, group_bytes);
    worker.claim_near(total, chunk, (bytes / (chunk * group_bytes).max(1)).max(1))
}

/// The group with which this worker will begin, see [`claim_groups`].
#[must_use]
pub fn first_group(worker: &Worker<'_>, total: usize, group_bytes: usize) -> usize {
    worker.nearest(total, chunk(worker, total, group_bytes))
}

/// Bytes of lane groups that are claimed at least: enough that claiming is cheap, so few that workers end together.
const CHUNK: usize = 32 << 10;

/// Lane groups that are claimed at least.
fn chunk(worker: &Worker<'_>, total: usize, group_bytes: usize) -> usize {
    let fair = total.div_ceil(worker.count() * 8);
    // Two at least, for the tiles that have two lane groups.
    fair.min(CHUNK.div_ceil(group_bytes.max(1)).max(2)).max(1)
}

/// Bytes between what one row of activations meets of quantised weights and what is fetched meanwhile.
pub(crate) const LEAD: usize = 6 << 10;

/// As [`LEAD`], for the first lines of pages.
const PAGE_LEAD: usize = 16 << 10;

/// Columns of a matrix whose pages are announced. Fewer are those of models that a last cache holds in part, where the
/// processor would then fetch what displaces it: SmolLM2-135M lost 7 %, Gemma-3-270M 4 % of one thread's speed.
const PAGES_FROM: usize = 1024;

/// Asks for the cache lines of some bytes that will be read soon.
pub fn prefetch(isa: CpuIsa, bytes: &[u8]) {
    isa.run(Prefetch { bytes });
}

struct Prefetch<'a> {
    bytes: &'a [u8],
}

impl Kernel for Prefetch<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        for line in self.bytes.chunks(64) {
            s.prefetch(line.as_ptr());
        }
    }
}

/// Decodes one row of a packed matrix: exactly the values of the stored blocks.
///
/// # Panics
/// When `row` is not below `w.n()` or `out` has another length than `w.k()`.
pub fn gather_row(w: &PackedMatrix, row: usize, out: &mut [f32]) {
    assert!(row < w.n(), "row {row} of {}", w.n());
    assert_eq!(out.len(), w.k(), "a row of the matrix has another length");
    w.isa().run(GatherRow { w, row, out });
}

/// The rows of a product, checked against the activations and the output.
#[derive(Clone, Copy)]
struct Rows<'a> {
    count: usize,
    input: Option<&'a [u32]>,
    output: Option<&'a [u32]>,
    /// The first row of activations.
    x: *const u8,
    /// Bytes from one row of activations to the next.
    x_stride: usize,
}

impl<'a> Rows<'a> {
    /// The output has `width` columns.
    fn new(
        w: &PackedMatrix,
        x: Activations<'_>,
        map: RowMap<'a>,
        out: &Output<'_>,
        width: usize,
    ) -> Rows<'a> {
        let (data, x_stride, elements, available) = match x {
            Activations::F32 { data, stride } => {
                assert!(stride >= w.k(), "rows of activations {stride} apart, of length {}", w.k());
                let available = match data.len().checked_sub(w.k()) {
                    Some(rest) if stride > 0 => rest / stride + 1,
                    Some(_) => usize::MAX,
                    None => 0,
                };
                (data.as_ptr().cast(), stride * size_of::<f32>(), data.len(), available)
            }
            Activations::Quantised(blocks) => {
                assert!(w.dtype().is_quantised(), "{} weights need f32 activations", w.dtype());
                let row = w.k() / BLOCK;
                let available = blocks.len().checked_div(row).unwrap_or(usize::MAX);
                (blocks.as_ptr().cast(), row * size_of::<ActBlock>(), blocks.len() * BLOCK, available)
            }
        };
        let RowMap { count, input, output } = map;
        for list in [input, output].into_iter().flatten() {
            assert_eq!(list.len(), count, "a row list has another length than the number of rows");
        }
        let end = |list: Option<&[u32]>| {
            list.map_or(count, |list| list.iter().max().map_or(0, |&last| last as usize + 1))
        };
        assert!(end(input) <= available, "row {} of {elements} activations", end(input));
        let last = end(output).checked_sub(1).map(|last| last.checked_mul(out.stride));
        let fits = match last {
            None => true,
            Some(start) => {
                start.and_then(|start| start.checked_add(width)).is_some_and(|e| e <= out.data.len())
            }
        };
        assert!(fits, "output row {} lies outside {} elements", end(output), out.data.len());
        Rows { count, input, output, x: data, x_stride }
    }

    /// The activations of row `i` of the product.
    #[inline(always)]
    fn activations(&self, i: usize) -> *const u8 {
        let row = self.input.map_or(i, |input| input[i] as usize);
        self.x.wrapping_add(row * self.x_stride)
    }

    /// The output row of row `i` of the product.
    #[inline(always)]
    fn output(&self, i: usize) -> usize {
        self.output.map_or(i, |output| output[i] as usize)
    }
}

struct Product<'a> {
    w: &'a PackedMatrix,
    groups: Range<usize>,
    x: Activations<'a>,
    rows: Rows<'a>,
    bias: Option<&'a [f32]>,
    out: Output<'a>,
}

/// Calls `$run` with the format of a quantised type.
macro_rules! with_format {
    ($dtype:expr, $F:ident => $run:expr) => {
        match $dtype {
            DType::Q4_0 => {
                type $F = Symmetric<Half, Four, 8, 1>;
                $run
            }
            DType::Q5_0 => {
                type $F = Symmetric<Half, Five, 16, 1>;
                $run
            }
            DType::Q1_0 => {
                type $F = Symmetric<Half, Signs, 1, 4>;
                $run
            }
            DType::TQ1_0 | DType::TQ2_0 => {
                type $F = Symmetric<Half, Two, 1, 8>;
                $run
            }
            DType::MXFP4 => {
                type $F = Symmetric<Exponent, Floats, { Floats::OFFSET }, 1>;
                $run
            }
            DType::NVFP4 => {
                type $F = E4m3Halves<Floats, { Floats::OFFSET }>;
                $run
            }
            DType::Q4_1 => {
                type $F = Affine<Four, false>;
                $run
            }
            DType::Q5_1 => {
                type $F = Affine<Five, true>;
                $run
            }
            DType::Q8_0 | DType::Q8_1 => {
                type $F = Signed<Half, Eight, 1>;
                $run
            }
            DType::Q8_K => {
                type $F = Signed<Single, Eight, 8>;
                $run
            }
            DType::IQ4_NL => {
                type $F = Signed<Half, Coded<Four>, 1>;
                $run
            }
            DType::Q4_K => {
                type $F = SuperAffine<Four, false>;
                $run
            }
            DType::Q5_K => {
                type $F = SuperAffine<Five, true>;
                $run
            }
            DType::Q2_K => {
                type $F = SuperHalves<Two>;
                $run
            }
            DType::Q3_K => {
                type $F = SuperSymmetric<Three, 4>;
                $run
            }
            DType::Q6_K => {
                type $F = SuperSymmetric<Six, 32>;
                $run
            }
            DType::IQ3_XXS | DType::IQ3_S | DType::IQ4_XS => {
                type $F = SuperSigned<Coded<Four>, false>;
                $run
            }
            DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => {
                type $F = SuperSigned<Coded<Three>, true>;
                $run
            }
            DType::F32 | DType::F16 | DType::BF16 | DType::U32 => unreachable!("a plain type"),
        }
    };
}

/// Decodes weights `32 sub` to `32 sub + 31` of a packed block of each row, for all formats: one function on each
/// instruction set, which the products with f32 activations share.
struct DecodeBlock<W> {
    dtype: DType,
    w: *const u8,
    sub: usize,
    /// 32 vectors.
    out: *mut W,
}

impl<W> Kernel for DecodeBlock<W> {
    type Out = ();

    #[allow(clippy::unit_arg, reason = "most formats have no book")]
    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        // SAFETY: whoever makes a `DecodeBlock` vouches for a packed block of the type, and for 32 vectors of this
        // instruction set at `out`.
        unsafe {
            let out = &mut *self.out.cast::<[S::F; BLOCK]>();
            with_format!(self.dtype, F => F::weights(s, F::book(s, self.dtype), self.w, self.sub, out));
        }
    }
}

/// Activation blocks in a packed block of a quantised type.
const fn subs(dtype: DType) -> usize {
    dtype.block_len() / BLOCK
}

impl Kernel for Product<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        match (self.w.dtype(), self.x) {
            (DType::F32, _) => self.tiles::<S, Plain<F32>>(s),
            (DType::F16, _) => self.tiles::<S, Plain<F16>>(s),
            (DType::BF16, _) => self.tiles::<S, Plain<Bf16>>(s),
            (dtype, Activations::Quantised(_)) => with_format!(dtype, F => self.tiles::<S, Fast<F>>(s)),
            (_, Activations::F32 { .. }) => self.tiles::<S, Exact>(s),
        }
    }
}

/// Bytes of activations that are walked again and again while weights stream past: half a small L2 cache.
const TOKEN_CACHE: usize = 256 << 10;

/// Tokens of the widest tile, and how many lane groups it has. A tile's sums are meant to stay in registers. One group
/// times eight tokens beats two times four and two times six by 3 to 8 % on AVX2; on AVX-512 two times six by 15 % for 16
/// tokens and by little for 512, except for f32 activations, which lose 15 %.
const fn widest<S: Isa, K: Tile>() -> (usize, usize) {
    match S::REGISTERS {
        0 => (1, 1),
        32.. if !K::ONE_STREAM => (6, 2),
        _ => (8, 1),
    }
}

impl Product<'_> {
    /// Walks the tiles: for each cacheful of tokens, for each few lane groups, the tokens.
    #[inline(never)]
    fn tiles<S: Isa, K: Tile>(&self, s: S) {
        let widest = const { widest::<S, K>().0 };
        let chunk = (TOKEN_CACHE / self.rows.x_stride.max(1)).max(1).next_multiple_of(widest);
        for start in (0..self.rows.count).step_by(chunk) {
            let tokens = start..(start + chunk).min(self.rows.count);
            let mut group = self.groups.start;
            while group < self.groups.end {
                // Where a shape is not wanted, its call must not be compiled: hence conditions that are constants.
                let two = !K::ONE_STREAM || tokens.len() > 1;
                if const { S::REGISTERS > 0 && !K::RARE } && two && group + 2 <= self.groups.end {
                    self.tokens::<S, K, 2>(s, group, tokens.clone());
                    group += 2;
                    continue;
                }
                self.tokens::<S, K, 1>(s, group, tokens.clone());
                group += 1;
            }
        }
    }

    /// `G` lane groups times the tokens.
    #[inline(always)]
    fn tokens<S: Isa, K: Tile, const G: usize>(&self, s: S, group: usize, tokens: Range<usize>) {
        let mut at = tokens.start;
        while at < tokens.end {
            let (left, later) = (tokens.end - at, at > tokens.start);
            if const { S::REGISTERS == 0 } {
                at += self.tile::<S, K, G, 1>(s, group, at, later);
                continue;
            }
            if const { K::RARE } {
                if left >= 4 {
                    at += self.tile::<S, K, G, 4>(s, group, at, later);
                } else {
                    at += self.tile::<S, K, G, 1>(s, group, at, later);
                }
                continue;
            }
            if left >= const { widest::<S, K>().0 } {
                if const { widest::<S, K>().1 == 2 } {
                    at += self.tile::<S, K, G, 6>(s, group, at, later);
                } else {
                    for g in 0..G {
                        self.tile::<S, K, 1, 8>(s, group + g, at, later);
                    }
                    at += 8;
                }
            } else if left >= 4 {
                at += self.tile::<S, K, G, 4>(s, group, at, later);
            } else if left >= 2 {
                at += self.tile::<S, K, G, 2>(s, group, at, later);
            } else {
                at += self.tile::<S, K, G, 1>(s, group, at, later);
            }
        }
    }

    /// Computes and stores one tile; returns its tokens.
    #[inline(always)]
    fn tile<S: Isa, K: Tile, const G: usize, const T: usize>(
        &self,
        s: S,
        group: usize,
        at: usize,
        later: bool,
    ) -> usize {
        s.enter(TileOf::<K, G, T> { product: self, group, at, later, tile: PhantomData });
        T
    }
}

/// `G` lane groups from `group` times `T` tokens from `at`.
struct TileOf<'a, K, const G: usize, const T: usize> {
    product: &'a Product<'a>,
    group: usize,
    at: usize,
    /// Whether other tokens were multiplied with these groups just before.
    later: bool,
    tile: PhantomData<K>,
}

impl<K: Tile, const G: usize, const T: usize> Kernel for TileOf<'_, K, G, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let Product { w: matrix, rows, .. } = self.product;
        let mut w = [std::ptr::null(); G];
        for (g, w) in w.iter_mut().enumerate() {
            *w = matrix.group(self.group + g).as_ptr();
        }
        let mut x = [std::ptr::null(); T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = rows.activations(self.at + t);
        }
        // What is prefetched while one token reads weights from memory. One group after another is one stream, which leads 6 KiB;
        // two are two streams, and lead to those of the next tile (see `Plain`). Measured on Zen 5 with two threads, of the 82 GB/s
        // of a plain read: Q4_K 0.94 as one stream with 6 KiB, 0.92 with 8, 0.89 with 4 and 0.87 with 12; as two streams a quarter less.
        // Fetching into L2 alone, or far ahead into L2 and close by into L1, loses 5 to 20 %. Past the matrix others lie, or pages
        // that are not mapped, where a prefetch walks the page tables in vain: five times slower on a small matrix.
        //
        // Further tokens find the groups in a cache: the first ones fetch the next groups whole.
        let left = matrix.groups() - self.group - G;
        let within = |bytes: usize| (left * matrix.group_bytes()).min(bytes);
        let lines = match T {
            _ if self.later => 0,
            1 if K::ONE_STREAM => within(LEAD),
            _ if left >= G => G * matrix.group_bytes(),
            _ => 0,
        };
        let pages = if T > 1 || self.later || matrix.k() < PAGES_FROM { 0 } else { within(PAGE_LEAD) };
        let ahead = Ahead { lines, pages };
        // SAFETY: a lane group holds `k` weights of its rows, packed for this instruction set; `Rows::new` checked that the
        // rows of activations exist, and `Product::run` that their form fits `K`.
        let sums =
            unsafe { K::sums::<S, G, T>(s, matrix.dtype(), w, x, matrix.k(), matrix.block_bytes(), ahead) };
        for (g, sums) in sums.into_iter().enumerate() {
            for (t, sum) in sums.into_iter().enumerate() {
                self.product.store(s, self.group + g, rows.output(self.at + t), sum);
            }
        }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn store<S: Isa>(&self, s: S, group: usize, row: usize, mut sum: S::F) {
        let first = group * S::LANES;
        let n = S::LANES.min(self.w.n() - first);
        let start = row * self.out.stride + first - self.out.from;
        // SAFETY: the caller of `matmul_groups` vouches that nobody else uses these outputs.
        let out = unsafe { self.out.data.part_mut(start..start + n) };
        // SAFETY: bias and output have `n` elements from here.
        unsafe {
            if let Some(bias) = self.bias {
                sum = s.add(sum, s.load_partial(bias[first..first + n].as_ptr(), n));
            }
            if n == S::LANES {
                s.store(out.as_mut_ptr(), sum);
            } else {
                s.store_partial(out.as_mut_ptr(), sum, n);
            }
        }
    }
}

struct GatherRow<'a> {
    w: &'a PackedMatrix,
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for GatherRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        match self.w.dtype() {
            DType::F32 => self.plain(4, |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            DType::F16 => self.plain(2, |b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()),
            DType::BF16 => self.plain(2, |b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            _ => self.quantised(s),
        }
    }
}

impl GatherRow<'_> {
    fn plain(&mut self, size: usize, decode: impl Fn(&[u8]) -> f32) {
        let lanes = self.w.lanes();
        let column = self.w.group(self.row / lanes).chunks_exact(size).skip(self.row % lanes).step_by(lanes);
        for (out, bytes) in self.out.iter_mut().zip(column) {
            *out = decode(bytes);
        }
    }

    /// Decodes the whole lane group and keeps one lane: gathers are few, and one decoder serves both uses.
    #[inline(always)]
    fn quantised<S: Isa>(self, s: S) {
        let GatherRow { w, row, out } = self;
        let (group, dtype) = (w.group(row / S::LANES), w.dtype());
        let mut weights = [s.splat(0.0); BLOCK];
        for (at, out) in out.chunks_exact_mut(BLOCK).enumerate() {
            let block = &group[at / subs(dtype) * w.block_bytes()..][..w.block_bytes()];
            // One packed block of the type, and 32 vectors.
            s.enter(DecodeBlock {
                dtype,
                w: block.as_ptr(),
                sub: at % subs(dtype),
                out: weights.as_mut_ptr(),
            });
            for (out, &weight) in out.iter_mut().zip(&weights) {
                let mut lanes = [0f32; VIRTUAL_LANES];
                // SAFETY: `lanes` has room for the widest vector.
                unsafe { s.store(lanes.as_mut_ptr(), weight) };
                *out = lanes[row % S::LANES];
            }
        }
    }
}
