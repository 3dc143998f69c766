//! Attention: KV streamed in decode at depth 4096, and arithmetic in prefill of 512 rows, each the best of several runs,
//! beside what the memory bus gives a plain read in the same run.
//!
//! `cargo bench -p gristmill-cpu --bench attention [-- THREADS]`

mod timing;

use gristmill_cpu::attention::{
    Attention, AttentionOut, BLOCK, KvLayout, KvPool, KvType, PageTable, attention, partials_len,
};
use gristmill_cpu::isa::CpuIsa;
use gristmill_cpu::memory::{HugeBuf, SharedSlice};
use gristmill_cpu::pool::{Pool, PoolOptions, Worker};
use gristmill_cpu::vector::{Rows, RowsMut};
use std::hint::black_box;
use timing::best;

const DEPTH: usize = 4096;
const ROWS: usize = 512;

fn read_bandwidth(pool: &Pool) -> f64 {
    let mut buf = HugeBuf::zeroed(256 << 20).expect("memory");
    buf.as_mut_slice::<u64>().fill(3);
    let words = buf.as_slice::<u64>();
    let seconds = best(|| {
        let job = |worker: &Worker<'_>| {
            let part = &words[worker.share(words.len(), 4096)];
            let mut sums = [0u64; 32];
            for chunk in part.chunks_exact(32) {
                for (sum, word) in sums.iter_mut().zip(chunk) {
                    *sum ^= word;
                }
            }
            black_box(sums);
        };
        pool.run(&job).expect("a run");
    });
    buf.len() as f64 / seconds / 1e9
}

struct Case {
    kind: KvType,
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

/// Seconds for `rows` rows that end at `depth`, over enough layers that the caches cannot hold them.
fn seconds(pool: &Pool, case: &Case, rows: usize, depth: usize, layers: usize) -> f64 {
    let layout = KvLayout::new(case.kind, case.kv_heads, case.dim, case.dim);
    let blocks = depth.div_ceil(BLOCK);
    let mut bufs: Vec<HugeBuf> = (0..layers)
        .map(|_| {
            let mut buf =
                HugeBuf::zeroed(4 * layout.pool_words(blocks).expect("few blocks")).expect("memory");
            buf.as_mut_slice::<u32>().fill(0x3c01_3c01);
            buf
        })
        .collect();
    let wide = case.heads * case.dim;
    let q = vec![0.01; rows * wide];
    let mut out = vec![0.0; rows * wide];
    let seq = vec![0; rows];
    let pos: Vec<u32> = (depth - rows..depth).map(|p| p as u32).collect();
    let until: Vec<u32> = pos.iter().map(|p| p + 1).collect();
    let pages: Vec<u32> = (0..blocks as u32).rev().collect();
    let mut partials = vec![0.0; partials_len(layout, case.heads, depth, pool.threads())];
    let partials = SharedSlice::new(&mut partials);
    let target = AttentionOut { rows: RowsMut::new(&mut out, wide), blocks: None };
    let layers: Vec<Attention<'_>> = bufs
        .iter_mut()
        .map(|buf| Attention {
            q: Rows::new(&q, wide),
            kv: KvPool::new(layout, SharedSlice::new(buf.as_mut_slice())),
            heads: case.heads,
            seq: &seq,
            pos: &pos,
            until: &until,
            pages: PageTable { pages: &pages, per_seq: blocks },
            window: None,
            scale: 0.1,
            softcap: None,
        })
        .collect();
    let isa = CpuIsa::detect();
    best(|| {
        let job = |worker: &Worker<'_>| {
            for layer in &layers {
                // SAFETY: the barrier separates the layers; nothing else uses the memory.
                unsafe { attention(isa, layer, worker, partials, &target) };
                worker.barrier();
            }
        };
        pool.run(&job).expect("a run");
    })
}

fn main() {
    let asked = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let threads = asked.unwrap_or(0);
    let pool = Pool::new(PoolOptions { threads, pin: true }).expect("threads");
    println!("{} threads, {}", pool.threads(), CpuIsa::detect());
    println!("plain read                            {:6.1} GB/s", read_bandwidth(&pool));
    for (heads, kv_heads, dim) in [(9, 3, 64), (12, 2, 128), (8, 8, 64), (32, 8, 128), (4, 1, 256)] {
        for kind in KvType::ALL {
            let case = Case { kind, heads, kv_heads, dim };
            let bytes = (DEPTH / BLOCK * KvLayout::new(kind, kv_heads, dim, dim).block_bytes()) as f64;
            let layers = ((64 << 20) as f64 / bytes).ceil() as usize;
            let decode = bytes * layers as f64 / seconds(&pool, &case, 1, DEPTH, layers) / 1e9;
            let visible = (ROWS * (ROWS + 1) / 2) as f64;
            let flops = 4.0 * visible * (heads * dim) as f64;
            let prefill = flops / seconds(&pool, &case, ROWS, ROWS, 1) / 1e9;
            println!(
                "{heads:2} heads, {kv_heads} kv heads of {dim:3}, {kind:4}   decode {decode:5.1} GB/s   prefill {prefill:6.1} GFLOP/s"
            );
        }
    }
}
