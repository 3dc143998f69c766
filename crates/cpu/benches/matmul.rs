//! Products of packed weights, on all processors: decode (one row or a few, weights streamed from memory, beside what a plain
//! read moves in the same run) and prefill (512 rows).
//!
//! `cargo bench -p gristmill-cpu --bench matmul [-- FILTER]`

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gristmill_cpu::isa::CpuIsa;
use gristmill_cpu::matmul::{Activations, Output, RowMap, claim_groups, matmul_groups};
use gristmill_cpu::memory::{HugeBuf, SharedSlice};
use gristmill_cpu::pack::PackedMatrix;
use gristmill_cpu::pool::{Pool, PoolOptions, Worker};
use gristmill_cpu::quant::{ActBlock, BLOCK, quantise_row};
use std::hint::black_box;
use tensor::DType;

/// Shapes of a layer of Qwen2.5-1.5B: output, gate with up, down.
const SHAPES: [[usize; 2]; 3] = [[1536, 1536], [17_920, 1536], [1536, 8960]];
/// What must stream by: many times the last cache.
const STREAM: usize = 768 << 20;
const TYPES: [DType; 7] =
    [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::IQ4_NL, DType::F16];

/// Weights whose blocks are any bytes with small scales: the time does not depend on values that are finite.
fn weights(dtype: DType, [n, k]: [usize; 2]) -> PackedMatrix {
    let mut state = 1u32;
    let values: Vec<f32> = (0..k)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect();
    let mut row = vec![0; dtype.bytes_for(k).expect("whole blocks")];
    match dtype {
        DType::F16 => {
            for (bytes, v) in row.chunks_exact_mut(2).zip(&values) {
                bytes.copy_from_slice(&half::f16::from_f32(*v).to_le_bytes());
            }
        }
        _ => tensor::encode::encode(dtype, &values, None, &mut row).expect("an encoder"),
    }
    PackedMatrix::pack(CpuIsa::detect(), dtype, n, k, |_| row.as_slice()).expect("memory")
}

fn multiply(
    worker: &Worker<'_>,
    w: &PackedMatrix,
    x: Activations<'_>,
    rows: usize,
    out: SharedSlice<'_, f32>,
) {
    while let Some(groups) = claim_groups(worker, w.groups(), w.group_bytes(), rows) {
        let out = Output { data: out, stride: w.n(), from: 0 };
        // SAFETY: these groups are this worker's own.
        unsafe { matmul_groups(w, groups, x, RowMap::first(rows), None, out) };
    }
    worker.barrier();
}

fn activations(k: usize, rows: usize) -> (Vec<f32>, Vec<ActBlock>) {
    let x: Vec<f32> = (0..k * rows).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut blocks = vec![bytemuck::Zeroable::zeroed(); k * rows / BLOCK];
    quantise_row(CpuIsa::detect(), &x, &mut blocks);
    (x, blocks)
}

fn form<'a>(dtype: DType, k: usize, (x, blocks): &'a (Vec<f32>, Vec<ActBlock>)) -> Activations<'a> {
    if dtype.is_quantised() {
        Activations::Quantised(blocks)
    } else {
        Activations::F32 { data: x, stride: k }
    }
}

fn decode(c: &mut Criterion) {
    let pool = Pool::new(PoolOptions::default()).expect("threads");
    let mut group = c.benchmark_group("decode");
    group.sample_size(20);
    let mut buffer = HugeBuf::zeroed(STREAM).expect("memory");
    buffer.as_mut_slice::<u64>().fill(3);
    group.throughput(Throughput::Bytes(STREAM as u64));
    group.bench_function("read", |b| {
        let words = buffer.as_slice::<u64>();
        b.iter(|| {
            let job = |worker: &Worker<'_>| {
                let mut sums = [0u64; 32];
                for chunk in words[worker.share(words.len(), 4096)].chunks_exact(32) {
                    sums.iter_mut().zip(chunk).for_each(|(sum, word)| *sum ^= word);
                }
                black_box(sums);
            };
            pool.run(&job).expect("a run");
        });
    });
    for dtype in TYPES {
        for shape in SHAPES {
            stream(&mut group, &pool, dtype, shape, 1);
        }
    }
    group.finish();
    let mut group = c.benchmark_group("batch");
    group.sample_size(10);
    for dtype in TYPES {
        for rows in [2, 4, 8, 16, 32] {
            stream(&mut group, &pool, dtype, SHAPES[1], rows);
        }
    }
}

/// As many matrices as no cache holds, each times the same rows.
fn stream(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pool: &Pool,
    dtype: DType,
    shape: [usize; 2],
    rows: usize,
) {
    let one = weights(dtype, shape);
    let bytes = one.groups() * one.group_bytes();
    let matrices: Vec<PackedMatrix> =
        std::iter::once(one).chain((1..STREAM.div_ceil(bytes)).map(|_| weights(dtype, shape))).collect();
    let all = activations(shape[1], rows);
    let mut out = vec![0.0; shape[0] * rows];
    group.throughput(Throughput::Bytes((matrices.len() * bytes) as u64));
    let id = BenchmarkId::new(dtype.name(), format!("{}x{} times {rows}", shape[0], shape[1]));
    group.bench_function(id, |b| {
        b.iter(|| {
            let out = SharedSlice::new(&mut out);
            let job = |worker: &Worker<'_>| {
                for w in &matrices {
                    multiply(worker, w, form(dtype, shape[1], &all), rows, out);
                }
            };
            pool.run(&job).expect("a run");
        });
    });
}

fn prefill(c: &mut Criterion) {
    const ROWS: usize = 512;
    let pool = Pool::new(PoolOptions::default()).expect("threads");
    let mut group = c.benchmark_group("prefill");
    group.sample_size(10);
    for dtype in TYPES {
        let shape = SHAPES[1];
        let w = weights(dtype, shape);
        let all = activations(shape[1], ROWS);
        let mut out = vec![0.0; shape[0] * ROWS];
        group.throughput(Throughput::Elements((2 * ROWS * shape[0] * shape[1]) as u64));
        group.bench_function(dtype.name(), |b| {
            b.iter(|| {
                let out = SharedSlice::new(&mut out);
                let job = |worker: &Worker<'_>| multiply(worker, &w, form(dtype, shape[1], &all), ROWS, out);
                pool.run(&job).expect("a run");
            });
        });
    }
}

criterion_group!(benches, decode, prefill);
criterion_main!(benches);
