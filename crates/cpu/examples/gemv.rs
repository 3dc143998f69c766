//! Speed of the matrix products: GB/s of weights for one token, GOP/s for many, beside the memory's read bandwidth.
//!
//! `cargo run --release -p gristmill-cpu --example gemv -- [formats, e.g. Q4_K,Q8_0] [isa] [exact]`

use bytemuck::Zeroable;
use gristmill_cpu::isa::CpuIsa;
use gristmill_cpu::matmul::{Activations, Output, RowMap, matmul_groups};
use gristmill_cpu::memory::{HugeBuf, SharedSlice};
use gristmill_cpu::pack::{PackedMatrix, Packer};
use gristmill_cpu::quant::{ActBlock, BLOCK, quantise_row};
use std::sync::Barrier;
use std::time::Instant;
use tensor::DType;

/// Seconds that one measurement may take.
const BUDGET: f64 = 0.25;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let formats: Vec<DType> = DType::WEIGHTS
        .into_iter()
        .filter(|t| {
            args.first().is_none_or(|list| list == "all" || list.split(',').any(|name| name == t.name()))
        })
        .collect();
    let isa = args.get(1).map_or(CpuIsa::detect(), |name| name.parse().unwrap_or_else(|e| panic!("{e}")));
    let exact = args.get(2).is_some_and(|mode| mode == "exact");
    println!("{isa}, {}", if exact { "exact" } else { "fast" });
    println!(
        "{:6} {:>11} {:>2} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "shape", "th", "bus GB/s", "M=1 GB/s", "of bus", "M=64 GOP", "M=512 GOP"
    );
    for dtype in formats {
        for (k, n) in [(1536, 8960), (576, 1536)] {
            if k % dtype.block_len() != 0 {
                continue;
            }
            for threads in [1, 2] {
                row(isa, dtype, n, k, threads, exact);
            }
        }
    }
}

fn row(isa: CpuIsa, dtype: DType, n: usize, k: usize, threads: usize, exact: bool) {
    // Enough copies that decoding cannot live in the last-level cache.
    let one = PackedMatrix::bytes(isa, dtype, n, k).unwrap();
    let copies = (256usize << 20).div_ceil(one);
    let weights: Vec<PackedMatrix> = (0..copies).map(|seed| random_matrix(isa, dtype, n, k, seed)).collect();
    let x: Vec<f32> = (0..512 * k).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut blocks = vec![ActBlock::zeroed(); x.len() / BLOCK];
    quantise_row(isa, &x, &mut blocks);
    let x = if exact || !dtype.is_quantised() {
        Activations::F32 { data: &x, stride: k }
    } else {
        Activations::Quantised(&blocks)
    };
    let mut best = [0f64; 4];
    // Bus and product alternate, because a shared host's bus changes from second to second.
    for _ in 0..3 {
        best[0] = best[0].max(read_bandwidth(threads));
        for (slot, m) in [(1, 1), (2, 64), (3, 512)] {
            let seconds = time(&weights, x, m, threads);
            let figure = if m == 1 { one as f64 / seconds } else { 2.0 * (m * n * k) as f64 / seconds };
            best[slot] = best[slot].max(figure / 1e9);
        }
    }
    let [bus, decode, some, many] = best;
    println!(
        "{:6} {:>11} {threads:>2} {bus:9.1} {decode:9.1} {:8.0}% {some:9.1} {many:9.1}",
        dtype.name(),
        format!("{k}x{n}"),
        100.0 * decode / bus
    );
}

fn random_matrix(isa: CpuIsa, dtype: DType, n: usize, k: usize, seed: usize) -> PackedMatrix {
    let bytes = dtype.bytes_for(k).unwrap();
    let mut state = seed as u64 + 1;
    let stored: Vec<u8> = (0..n * bytes)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Keeps every f16, bf16 and f32 finite and ordinary.
            (state >> 33) as u8 & 0x3f
        })
        .collect();
    let mut packer = Packer::new(isa, dtype, n, k).unwrap();
    for mut chunk in packer.chunks(usize::MAX) {
        chunk.pack(|row| &stored[row * bytes..][..bytes]).unwrap();
    }
    packer.finish()
}

/// Seconds per product, over as many products as fit the budget; threads split the lane groups evenly.
fn time(weights: &[PackedMatrix], x: Activations<'_>, m: usize, threads: usize) -> f64 {
    let n = weights[0].n();
    let mut out = vec![0f32; m * n];
    let out = Output { data: SharedSlice::new(&mut out), stride: n };
    let run = |rounds: usize| {
        let barrier = Barrier::new(threads + 1);
        std::thread::scope(|scope| {
            for t in 0..threads {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    for w in weights.iter().cycle().take(rounds) {
                        let groups = w.groups() * t / threads..w.groups() * (t + 1) / threads;
                        // SAFETY: the threads' groups are disjoint.
                        unsafe { matmul_groups(w, groups, x, RowMap::first(m), None, out) };
                    }
                    barrier.wait();
                });
            }
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            start.elapsed().as_secs_f64()
        })
    };
    let mut rounds = 1;
    loop {
        let seconds = run(rounds);
        if seconds > BUDGET / 2.0 || rounds > 1 << 20 {
            return seconds / rounds as f64;
        }
        rounds = (rounds as f64 * (BUDGET / seconds.max(1e-6)).min(16.0)).ceil() as usize + 1;
    }
}

/// GB/s that threads read from a large buffer with plain vector loads.
fn read_bandwidth(threads: usize) -> f64 {
    let buffer = HugeBuf::zeroed(512 << 20).unwrap();
    let mut buffer = buffer;
    buffer.as_mut_slice::<u64>().iter_mut().enumerate().for_each(|(i, x)| *x = i as u64);
    let words = buffer.as_slice::<u64>();
    let barrier = Barrier::new(threads + 1);
    let seconds = std::thread::scope(|scope| {
        for part in words.chunks(words.len().div_ceil(threads)) {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let mut sums = [0u64; 16];
                for line in part.as_chunks::<16>().0 {
                    for (sum, word) in sums.iter_mut().zip(line) {
                        *sum ^= word;
                    }
                }
                std::hint::black_box(sums);
                barrier.wait();
            });
        }
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        start.elapsed().as_secs_f64()
    });
    buffer.len() as f64 / seconds / 1e9
}
