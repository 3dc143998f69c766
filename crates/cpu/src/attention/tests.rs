//! Attention against an f64 reference, and against itself bit by bit.

use super::*;
use crate::isa::CpuIsa;
use crate::memory::SharedSlice;
use crate::pool::{Pool, PoolOptions, Worker};
use crate::vector::RowsMut;
use bytemuck::Zeroable;
use std::ops::Range;
use tensor::ops::KV_SCALED;
use tensor::ops::kv_cache::q8_block;

fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| 2.0 * next()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    kind: KvType,
    heads: usize,
    kv_heads: usize,
    /// Elements of a query or key.
    dim: usize,
    /// Elements of a value, where these are not as many.
    v_dim: Option<usize>,
    window: Option<u32>,
    softcap: Option<f32>,
    /// Rows see the whole sequence, not only what came before.
    both_ways: bool,
}

impl Shape {
    fn v_dim(&self) -> usize {
        self.v_dim.unwrap_or(self.dim)
    }

    /// Elements of an output row.
    fn width(&self) -> usize {
        self.heads * self.v_dim()
    }
}

const PLAIN: Shape = Shape {
    kind: KvType::F32,
    heads: 6,
    kv_heads: 2,
    dim: 32,
    v_dim: None,
    window: None,
    softcap: None,
    both_ways: false,
};

/// Sequences with queries, keys and values for every position, and a cache whose pages are out of order.
struct Scene {
    shape: Shape,
    lens: Vec<usize>,
    q: Vec<Vec<f32>>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    pages: Vec<u32>,
    per_seq: usize,
    words: Vec<f32>,
    /// Words of memory for partial softmaxes, where it is not what [`partials_len`] says.
    partials: Option<usize>,
}

/// The rows of a step: sequence and position.
type Step = Vec<(usize, usize)>;

impl Scene {
    fn new(shape: Shape, lens: &[usize]) -> Self {
        let data = |seed: u64, width: usize| {
            lens.iter().enumerate().map(|(i, n)| noise(seed + i as u64, n * width)).collect::<Vec<_>>()
        };
        let per_seq = lens.iter().max().unwrap().div_ceil(BLOCK) + 1;
        let blocks = per_seq * lens.len();
        // A step that is coprime to the number of blocks visits them all.
        let step = (2..).find(|&step| gcd(step, blocks) == 1).unwrap();
        let pages = (0..blocks).map(|i| ((i * step + blocks / 2) % blocks) as u32).collect();
        // Fresh blocks hold the worst.
        let words = vec![f32::NAN; layout(&shape).pool_words(blocks).unwrap()];
        Self {
            shape,
            lens: lens.to_vec(),
            q: data(100, shape.heads * shape.dim),
            k: data(200, shape.kv_heads * shape.dim),
            v: data(300, shape.kv_heads * shape.v_dim()),
            pages,
            per_seq,
            words,
            partials: None,
        }
    }

    fn all_rows(&self) -> Step {
        self.lens.iter().enumerate().flat_map(|(seq, &n)| (0..n).map(move |pos| (seq, pos))).collect()
    }

    /// Writes the keys and values of a step, then computes its attention, with `padding` rows more.
    fn step(
        &mut self,
        isa: CpuIsa,
        step: &[(usize, usize)],
        pool: Option<&Pool>,
        padding: usize,
    ) -> Vec<f32> {
        let shape = self.shape;
        let gather = |from: &[Vec<f32>], width: usize| {
            let rows = step.iter().flat_map(|&(seq, pos)| from[seq][pos * width..][..width].to_vec());
            rows.chain(vec![1.0; padding * width]).collect::<Vec<_>>()
        };
        let (wide, out_width) = (shape.heads * shape.dim, shape.width());
        let (k_width, v_width) = (shape.kv_heads * shape.dim, shape.kv_heads * shape.v_dim());
        let (q, k, v) = (gather(&self.q, wide), gather(&self.k, k_width), gather(&self.v, v_width));
        let seq: Vec<u32> = step.iter().map(|s| s.0 as u32).collect();
        let pos: Vec<u32> = step.iter().map(|s| s.1 as u32).collect();
        let until: Vec<u32> =
            step.iter().map(|s| (if shape.both_ways { self.lens[s.0] } else { s.1 + 1 }) as u32).collect();
        let pages = PageTable { pages: &self.pages, per_seq: self.per_seq };
        let kv = KvPool::new(layout(&shape), SharedSlice::new(&mut self.words));
        let write =
            KvWrite { k: Rows::new(&k, k_width), v: Rows::new(&v, v_width), kv, seq: &seq, pos: &pos, pages };
        let args = Attention {
            q: Rows::new(&q, wide),
            kv,
            heads: shape.heads,
            seq: &seq,
            pos: &pos,
            until: &until,
            pages,
            window: shape.window,
            scale: scale(&shape),
            softcap: shape.softcap,
        };
        let mut out = vec![f32::NAN; (step.len() + padding) * out_width];
        let context = self.lens.iter().max().unwrap();
        let workers = pool.map_or(1, Pool::threads);
        let useful = partials_len(layout(&shape), shape.heads, *context, workers);
        // What the memory holds must not matter.
        let mut partials = vec![f32::NAN; self.partials.unwrap_or(useful)];
        let partials = SharedSlice::new(&mut partials);
        let whole = shape.v_dim().is_multiple_of(quant::BLOCK);
        let mut stale = ActBlock::zeroed();
        stale.sum = f32::NAN;
        let mut blocks = vec![stale; out.len() / quant::BLOCK];
        let target = AttentionOut {
            rows: RowsMut::new(&mut out, out_width),
            blocks: whole.then(|| SharedSlice::new(&mut blocks)),
        };
        let job = |worker: &Worker<'_>| {
            // SAFETY: each worker writes rows and heads of its own, and a barrier lies between writing and reading.
            unsafe {
                let rows = worker.share(step.len() + padding, 1);
                kv_write(isa, &write, rows.clone(), 0..1);
                kv_write(isa, &write, rows, 1..shape.kv_heads);
                worker.barrier();
                attention(isa, &args, worker, partials, &target);
            }
        };
        match pool {
            Some(pool) => pool.run(&job).unwrap(),
            None => Pool::new(PoolOptions { threads: 1, pin: false }).unwrap().run(&job).unwrap(),
        }
        let padding_rows = &out[step.len() * out_width..];
        assert!(padding_rows.iter().all(|&v| v.to_bits() == 0), "padding rows are zero");
        if whole {
            let mut wanted = blocks.clone();
            quant::quantise_row(isa, &out, &mut wanted);
            assert!(bytemuck::cast_slice::<_, u8>(&blocks) == bytemuck::cast_slice::<_, u8>(&wanted));
        }
        out.truncate(step.len() * out_width);
        out
    }

    /// The outputs, and for each how far rounding may move it: sums of products in f32 are off by a random walk over the
    /// dimensions; keys and values in binary16 by 2^-11 of each. Those of a Q8_0 cache are taken as they were quantised.
    fn reference(&self, step: &[(usize, usize)]) -> Vec<(f64, f64)> {
        let shape = &self.shape;
        let stored = |rows: &[Vec<f32>], dim: usize| -> Vec<Vec<f32>> {
            let whole = |row: &Vec<f32>| match shape.kind {
                KvType::Q8_0 => row.chunks(dim).flat_map(decoded_q8).collect(),
                _ => row.clone(),
            };
            rows.iter().map(whole).collect()
        };
        let (all_keys, all_values) = (stored(&self.k, shape.dim), stored(&self.v, shape.v_dim()));
        let (dim, v_dim, group) = (shape.dim, shape.v_dim(), shape.heads / shape.kv_heads);
        let mut out = Vec::new();
        for &(seq, pos) in step {
            let until = if shape.both_ways { self.lens[seq] } else { pos + 1 };
            let first = shape.window.map_or(0, |w| (pos + 1).saturating_sub(w as usize));
            for head in 0..shape.heads {
                let q = &self.q[seq][(pos * shape.heads + head) * dim..][..dim];
                let key = |t: usize, d: usize| {
                    f64::from(all_keys[seq][(t * shape.kv_heads + head / group) * dim + d])
                };
                let value = |t: usize, d: usize| {
                    f64::from(all_values[seq][(t * shape.kv_heads + head / group) * v_dim + d])
                };
                let scores: Vec<f64> = (first..until)
                    .map(|t| {
                        let dot: f64 = (0..dim).map(|d| f64::from(q[d]) * key(t, d)).sum();
                        let score = dot * f64::from(scale(shape));
                        shape.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                    })
                    .collect();
                let top = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                let size = (first..until)
                    .map(|t| (0..dim).map(|d| (f64::from(q[d]) * key(t, d)).abs()).sum::<f64>())
                    .fold(0.0, f64::max)
                    * f64::from(scale(shape));
                let largest = (first..until).flat_map(|t| (0..v_dim).map(move |d| (t, d)));
                let largest = largest.map(|(t, d)| value(t, d).abs()).fold(0.0, f64::max);
                let walk = (dim as f64).sqrt();
                let bound = match shape.kind {
                    KvType::F32 | KvType::Q8_0 => 2f64.powi(-24) * (8.0 + walk.max(4.0) * size),
                    KvType::F16 => 2f64.powi(-11) * (1.0 + 4.0 * size / walk),
                } * largest;
                for d in 0..v_dim {
                    let weighted = |(i, s): (usize, &f64)| (s - top).exp() / total * value(first + i, d);
                    out.push((scores.iter().enumerate().map(weighted).sum(), bound));
                }
            }
        }
        out
    }
}

/// A key or value of a Q8_0 cache, decoded.
fn decoded_q8(x: &[f32]) -> Vec<f32> {
    let mut out = vec![];
    for x in x.chunks(KV_SCALED) {
        let mut codes = vec![0; x.len()];
        let scale = q8_block(x, &mut codes).to_f32();
        out.extend(codes.iter().map(|code| f32::from(*code) * scale));
    }
    out
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn layout(shape: &Shape) -> KvLayout {
    KvLayout::new(shape.kind, shape.kv_heads, shape.dim, shape.v_dim())
}

fn scale(shape: &Shape) -> f32 {
    // Sharper than usual, so that mistakes show.
    3.0 / (shape.dim as f32).sqrt()
}

#[track_caller]
fn close(got: &[f32], want: &[(f64, f64)]) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &(w, bound))) in got.iter().zip(want).enumerate() {
        assert!(
            (f64::from(g) - w).abs() <= bound,
            "value {i}: {g} instead of {w}, more than {bound:e} apart"
        );
    }
}

fn shapes() -> Vec<Shape> {
    let mut all = vec![
        PLAIN,
        Shape { heads: 1, kv_heads: 1, dim: 8, ..PLAIN },
        Shape { heads: 3, kv_heads: 3, dim: 40, ..PLAIN },
        Shape { heads: 9, kv_heads: 3, dim: 64, ..PLAIN },
        Shape { heads: 4, kv_heads: 1, dim: 256, ..PLAIN },
        Shape { heads: 14, kv_heads: 2, dim: 13, ..PLAIN },
        Shape { heads: 10, kv_heads: 2, dim: 128, softcap: Some(2.5), ..PLAIN },
        Shape { heads: 2, kv_heads: 1, dim: 512, window: Some(20), ..PLAIN },
        Shape { both_ways: true, ..PLAIN },
        Shape { heads: 4, kv_heads: 2, dim: 24, v_dim: Some(5), ..PLAIN },
        Shape { heads: 8, kv_heads: 1, dim: 7, v_dim: Some(50), ..PLAIN },
        Shape { heads: 4, kv_heads: 4, dim: 192, v_dim: Some(128), ..PLAIN },
        Shape { heads: 2, kv_heads: 1, dim: 1, v_dim: Some(300), window: Some(20), ..PLAIN },
    ];
    for window in [1, 15, 16, 17, 64, 1000] {
        all.push(Shape { window: Some(window), ..PLAIN });
    }
    KvType::ALL.into_iter().flat_map(|kind| all.iter().map(move |shape| Shape { kind, ..*shape })).collect()
}

#[test]
fn attention_matches_f64_for_ragged_batches() {
    for shape in shapes() {
        let mut scene = Scene::new(shape, &[1, 15, 16, 17, 100, 64]);
        let rows = scene.all_rows();
        let got = scene.step(CpuIsa::detect(), &rows, None, 3);
        close(&got, &scene.reference(&rows));
    }
}

#[test]
fn long_contexts_match_f64_across_splits() {
    for kind in KvType::ALL {
        for window in [None, Some(300)] {
            let mut scene = Scene::new(Shape { kind, window, heads: 3, kv_heads: 1, ..PLAIN }, &[700, 257]);
            let rows = scene.all_rows();
            let got = scene.step(CpuIsa::detect(), &rows, None, 0);
            close(&got, &scene.reference(&rows));
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for shape in shapes() {
        let run = |isa| {
            let mut scene = Scene::new(shape, &[33, 300]);
            // The portable code is slow: whole sequences are written, some rows attend.
            scene.step(CpuIsa::detect(), &scene.all_rows(), None, 0);
            let rows: Step = (0..33)
                .step_by(4)
                .map(|pos| (0, pos))
                .chain((0..300).step_by(33).map(|pos| (1, pos)))
                .collect();
            bits(&scene.step(isa, &rows, None, 0))
        };
        let all = CpuIsa::available();
        let want = run(all[0]);
        for &isa in &all[1..] {
            assert!(run(isa) == want, "{isa} differs for {shape:?}");
        }
    }
}

/// Cuts the rows of every sequence into chunks of `n` and runs them step by step, all sequences together.
fn in_chunks(scene: &mut Scene, n: usize, pool: Option<&Pool>) -> Vec<u32> {
    let width = scene.shape.width();
    let mut results: Vec<Vec<u32>> = vec![Vec::new(); scene.lens.len()];
    let longest = *scene.lens.iter().max().unwrap();
    for start in (0..longest).step_by(n) {
        let step: Step = (0..scene.lens.len())
            .flat_map(|seq| (start..scene.lens[seq].min(start + n)).map(move |pos| (seq, pos)))
            .collect();
        let out = scene.step(CpuIsa::detect(), &step, pool, 1);
        for (row, &(seq, _)) in step.iter().enumerate() {
            results[seq].extend(bits(&out[row * width..][..width]));
        }
    }
    results.concat()
}

#[test]
fn chunks_neighbours_order_and_workers_change_no_bit() {
    let pools = [2, 3, 8].map(|threads| Pool::new(PoolOptions { threads, pin: false }).unwrap());
    for shape in [
        PLAIN,
        Shape { kind: KvType::F16, heads: 9, kv_heads: 3, dim: 24, ..PLAIN },
        Shape { heads: 7, kv_heads: 1, window: Some(70), softcap: Some(4.0), ..PLAIN },
        Shape { kind: KvType::F16, heads: 2, kv_heads: 2, dim: 80, window: Some(16), ..PLAIN },
        Shape { kind: KvType::F16, heads: 6, kv_heads: 2, dim: 40, v_dim: Some(21), ..PLAIN },
        Shape { heads: 4, kv_heads: 1, dim: 9, v_dim: Some(70), ..PLAIN },
        Shape { kind: KvType::Q8_0, heads: 9, kv_heads: 3, dim: 64, ..PLAIN },
        Shape { kind: KvType::Q8_0, heads: 2, kv_heads: 2, dim: 80, window: Some(16), ..PLAIN },
        Shape { kind: KvType::Q8_0, heads: 7, kv_heads: 1, dim: 40, v_dim: Some(21), ..PLAIN },
    ] {
        let lens = [290, 17, 1, 64];
        let mut scene = Scene::new(shape, &lens);
        let rows = scene.all_rows();
        let whole = bits(&scene.step(CpuIsa::detect(), &rows, None, 0));
        for n in [1, 7, 16, 64] {
            let mut scene = Scene::new(shape, &lens);
            assert!(in_chunks(&mut scene, n, None) == whole, "chunks of {n}, {shape:?}");
        }
        for pool in &pools {
            for n in [1, 50, 1000] {
                let mut scene = Scene::new(shape, &lens);
                let got = in_chunks(&mut scene, n, Some(pool));
                assert!(got == whole, "chunks of {n} on {} workers, {shape:?}", pool.threads());
            }
        }
        // Rows alone, in any order, with everything written.
        let width = shape.width();
        let mut shuffled: Vec<usize> = (0..rows.len()).collect();
        shuffled.sort_by_key(|i| i * 7919 % 1009);
        let step: Step = shuffled.iter().map(|&i| rows[i]).collect();
        let out = bits(&scene.step(CpuIsa::detect(), &step, None, 0));
        for (at, &row) in shuffled.iter().enumerate() {
            assert!(out[at * width..][..width] == whole[row * width..][..width], "row {row} by itself");
        }
    }
}

/// Few rows with many keys, with memory from what one split of the longest tile takes to what all take.
#[test]
fn the_memory_for_partial_softmaxes_changes_no_bit() {
    let pools = [2, 3].map(|threads| Pool::new(PoolOptions { threads, pin: false }).unwrap());
    for shape in [
        Shape { heads: 4, kv_heads: 2, ..PLAIN },
        Shape { kind: KvType::F16, heads: 3, kv_heads: 1, dim: 24, v_dim: Some(19), ..PLAIN },
        Shape { heads: 2, kv_heads: 1, window: Some(900), softcap: Some(4.0), ..PLAIN },
        Shape { kind: KvType::Q8_0, heads: 4, kv_heads: 2, dim: 48, ..PLAIN },
    ] {
        let mut scene = Scene::new(shape, &[1400, 300, 900]);
        let rows = scene.all_rows();
        scene.step(CpuIsa::detect(), &rows, None, 0);
        // One row of a long context; chunks and single rows of several; one that sees a single split, in between.
        let steps: [Step; 3] = [
            vec![(0, 1399)],
            vec![(0, 1399), (1, 5), (2, 899)],
            (1390..1400)
                .map(|pos| (0, pos))
                .chain([(1, 299)])
                .chain((600..604).map(|pos| (2, pos)))
                .collect(),
        ];
        for step in steps {
            let longest = step.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).max().unwrap();
            let split = longest * shape.heads / shape.kv_heads * (shape.v_dim().next_multiple_of(16) + 2);
            scene.partials = None;
            let want = bits(&scene.step(CpuIsa::detect(), &step, None, 0));
            for pool in &pools {
                // Below three splits of the longest tile it is not divided; then waves of one split, two, and so on.
                for words in [0, 3 * split - 1, 3 * split, 4 * split, 4 * split + 7, 9 * split, 50 * split] {
                    scene.partials = Some(words);
                    let got = bits(&scene.step(CpuIsa::detect(), &step, Some(pool), 0));
                    assert!(got == want, "{words} words on {} workers, {step:?}, {shape:?}", pool.threads());
                }
            }
        }
    }
}

#[test]
fn the_memory_for_partial_softmaxes_is_bounded() {
    // The shapes of models from one to seventy billion parameters.
    for (heads, kv_heads, dim) in [(9, 3, 64), (32, 8, 128), (64, 8, 128), (128, 1, 576), (4, 1, 256)] {
        let layout = KvLayout::new(KvType::F16, kv_heads, dim, dim);
        for workers in [1, 8, 64, 192] {
            let len = |context| partials_len(layout, heads, context, workers);
            let (short, long) = (len(SPLIT), len(1 << 20));
            assert!(short <= len(4096) && len(4096) <= long && long == len(usize::MAX / 2));
            assert!(4 * long <= (workers + 1) << 22, "{workers} workers: {} bytes", 4 * long);
        }
    }
}

#[test]
fn another_key_or_value_that_is_seen_does_change_bits() {
    // The control of the test above: every visible position matters, no other does.
    for (pos, changed) in [(20, true), (57, true), (89, true), (90, false), (99, false), (19, false)] {
        for key in [true, false] {
            let run = |change: bool| {
                let mut scene = Scene::new(Shape { window: Some(70), ..PLAIN }, &[100]);
                let width = scene.shape.kv_heads * scene.shape.dim;
                if change {
                    let data = if key { &mut scene.k[0] } else { &mut scene.v[0] };
                    data[pos * width..][..width].fill(0.5);
                }
                let rows = scene.all_rows();
                let out = scene.step(CpuIsa::detect(), &rows, None, 0);
                let wide = scene.shape.heads * scene.shape.dim;
                bits(&out[89 * wide..][..wide])
            };
            assert_eq!(run(false) != run(true), changed, "position {pos}");
        }
    }
}

#[test]
fn a_poisoned_neighbour_is_not_seen() {
    KvType::ALL.into_iter().for_each(poisoned_neighbour);
}

fn poisoned_neighbour(kind: KvType) {
    let run = |poison: Range<usize>| {
        let mut scene = Scene::new(Shape { kind, ..PLAIN }, &[100, 100]);
        let (narrow, wide) = (scene.shape.kv_heads * scene.shape.dim, scene.shape.heads * scene.shape.dim);
        scene.k[0][poison.start * narrow..poison.end * narrow].fill(f32::NAN);
        scene.v[0][poison.start * narrow..poison.end * narrow].fill(f32::NAN);
        let rows = scene.all_rows();
        let out = scene.step(CpuIsa::detect(), &rows, None, 0);
        (bits(&out[..70 * wide]), bits(&out[100 * wide..]), out[70 * wide..100 * wide].to_vec())
    };
    let (clean, poisoned) = (run(0..0), run(70..100));
    assert!(clean.0 == poisoned.0, "rows before the NaN");
    assert!(clean.1 == poisoned.1, "the other sequence");
    assert!(poisoned.2.iter().all(|v| v.is_nan()), "rows that see the NaN say so");
}

/// What a cache of bytes holds are the codes and scales of [`q8_block`], on every instruction set.
#[test]
fn bytes_are_those_of_the_reference() {
    for (dim, v_dim) in [(32, 32), (64, 64), (40, 21), (13, 70), (1, 33), (128, 96)] {
        for isa in CpuIsa::available() {
            let shape = Shape { kind: KvType::Q8_0, heads: 1, kv_heads: 1, dim, v_dim: Some(v_dim), ..PLAIN };
            let mut scene = Scene::new(shape, &[1]);
            for (i, x) in scene.k[0].iter_mut().enumerate() {
                // A block of zeros, one of ties, one that is not finite, and others.
                match i / KV_SCALED {
                    0 if dim > 64 => *x = 0.0,
                    1 => *x = i as f32 - 31.5,
                    2 => *x = f32::INFINITY,
                    _ => {}
                }
            }
            scene.step(isa, &[(0, 0)], None, 0);
            let pool = KvPool::new(layout(&shape), SharedSlice::new(&mut scene.words));
            let cell = pool.cell::<i8>(scene.pages[0] as usize, 0);
            let mut scales = cell.scales.cast::<u16>();
            let blocks = scene.k[0].chunks(KV_SCALED).map(|x| (x, true));
            let blocks = blocks.chain(scene.v[0].chunks(KV_SCALED).map(|x| (x, false)));
            let (mut at, mut of_keys) = (0, true);
            for (x, key) in blocks {
                at = if key == of_keys { at } else { 0 };
                of_keys = key;
                let mut codes = vec![0; x.len()];
                let scale = q8_block(x, &mut codes);
                // SAFETY: places of the first position of the cell.
                let (have, stored) = unsafe {
                    let code = |i: usize| {
                        if key { *cell.keys.add(BLOCK * (at + i)) } else { *cell.values.add(at + i) }
                    };
                    ((0..x.len()).map(code).collect::<Vec<_>>(), *scales)
                };
                assert_eq!((have, stored), (codes, scale.to_bits()), "{isa}, {dim} and {v_dim}");
                scales = scales.wrapping_add(BLOCK);
                at += x.len();
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    for kind in KvType::ALL {
        let shape = Shape { kind, ..PLAIN };
        let wide = shape.heads * shape.dim;
        let q = noise(1, 3 * wide);
        let mut words = vec![f32::NAN; layout(&shape).pool_words(1).unwrap()];
        let kv = KvPool::new(layout(&shape), SharedSlice::new(&mut words));
        let mut out = vec![1.0; 3 * wide];
        let args = Attention {
            q: Rows::new(&q, wide),
            kv,
            heads: shape.heads,
            seq: &[0, 0, 0],
            pos: &[0, 100, 7],
            until: &[0, 5, 7],
            pages: PageTable { pages: &[], per_seq: 0 },
            window: Some(1),
            scale: 1.0,
            softcap: None,
        };
        let target = AttentionOut { rows: RowsMut::new(&mut out, wide), blocks: None };
        for threads in [1, 2] {
            let pool = Pool::new(PoolOptions { threads, pin: false }).unwrap();
            // SAFETY: nothing else uses the memory.
            let job = |worker: &Worker<'_>| unsafe {
                attention(CpuIsa::detect(), &args, worker, SharedSlice::new(&mut []), &target);
            };
            pool.run(&job).unwrap();
        }
        assert!(out.iter().all(|&v| v.to_bits() == 0));
    }
}

#[test]
fn rounded_rows_neither_overflow_nor_vanish() {
    // Rows of binary16 have powers of two, and scales of bytes the range of f32: sizes that binary16 cannot hold come through.
    for (size, kind) in
        [1e-30, 1e-9, 1.0, 1e9, 1e30].into_iter().flat_map(|s| [(s, KvType::F16), (s, KvType::Q8_0)])
    {
        let shape = Shape { kind, ..PLAIN };
        let mut scene = Scene::new(shape, &[40]);
        for v in &mut scene.v[0] {
            *v *= size as f32;
        }
        for k in &mut scene.k[0] {
            *k *= 1e6;
        }
        for q in &mut scene.q[0] {
            *q *= 1e-6;
        }
        let rows = scene.all_rows();
        let got = scene.step(CpuIsa::detect(), &rows, None, 0);
        close(&got, &scene.reference(&rows));
    }
}

#[test]
fn a_position_without_a_page_is_refused() {
    let mut words = vec![0.0; layout(&PLAIN).pool_words(1).unwrap()];
    let kv = KvPool::new(layout(&PLAIN), SharedSlice::new(&mut words));
    let wide = PLAIN.heads * PLAIN.dim;
    let q = noise(1, wide);
    for (pages, until) in [(&[0u32][..], 17), (&[1], 1), (&[], 1)] {
        let mut out = vec![1.0; wide];
        let args = Attention {
            q: Rows::new(&q, wide),
            kv,
            heads: PLAIN.heads,
            seq: &[0],
            pos: &[until - 1],
            until: &[until],
            pages: PageTable { pages, per_seq: pages.len() },
            window: None,
            scale: 1.0,
            softcap: None,
        };
        let target = AttentionOut { rows: RowsMut::new(&mut out, wide), blocks: None };
        let pool = Pool::new(PoolOptions { threads: 1, pin: false }).unwrap();
        // SAFETY: nothing else uses the memory.
        let job = |worker: &Worker<'_>| unsafe {
            attention(CpuIsa::detect(), &args, worker, SharedSlice::new(&mut []), &target);
        };
        assert!(pool.run(&job).is_err());
    }
}
