//! The gated delta rule at the widths of Qwen3-Next: rows of one sequence in one step, beside the same rows a step each, and
//! one row of many sequences, each the best of several runs.
//!
//! `cargo bench -p gristmill-cpu --bench delta [-- THREADS]`

mod timing;

use gristmill_cpu::isa::CpuIsa;
use gristmill_cpu::memory::{HugeBuf, SharedSlice};
use gristmill_cpu::pool::{Pool, PoolOptions, Worker};
use gristmill_cpu::vector::{DeltaRule, Rows, RowsMut, Segments, delta_rule};
use tensor::ops::NO_SNAP;
use timing::best;

const KEY_HEADS: usize = 16;
const HEADS: usize = 32;
const DIM: usize = 128;
const STATE: usize = HEADS * DIM * DIM;

/// Seconds for so many steps of so many rows of each of some sequences.
fn seconds(pool: &Pool, isa: CpuIsa, sequences: usize, rows: usize, steps: usize) -> f64 {
    let all = sequences * rows;
    let row = |width: usize, scale: f32| -> Vec<f32> {
        (0..all * width).map(|i| scale * ((i * 7 % 101) as f32 - 50.0)).collect()
    };
    let (q, k, v) = (row(KEY_HEADS * DIM, 0.01), row(KEY_HEADS * DIM, 0.02), row(HEADS * DIM, 0.03));
    let (log_decay, beta) = (vec![-0.05; all * HEADS], vec![0.5; all * HEADS]);
    let mut state = HugeBuf::zeroed(4 * sequences * STATE).expect("memory");
    let mut out = vec![0.0; all * HEADS * DIM];
    let slots: Vec<u32> = (0..sequences as u32).collect();
    let pos: Vec<u32> = (0..all).map(|at| 1 + (at % rows) as u32).collect();
    let snap: Vec<u32> =
        (0..all).map(|at| if at % rows + 1 == rows { (at / rows) as u32 } else { NO_SNAP }).collect();
    let extents = vec![rows as u32; sequences];
    let rule = DeltaRule {
        q: Rows::new(&q, KEY_HEADS * DIM),
        k: Rows::new(&k, KEY_HEADS * DIM),
        v: Rows::new(&v, HEADS * DIM),
        log_decay: Rows::new(&log_decay, HEADS),
        beta: Rows::new(&beta, HEADS),
        dk: DIM,
        dv: DIM,
        scale: 0.088,
        eps: 1e-6,
        segments: Segments { extents: &extents, slots: &slots, pos: &pos, snap: &snap },
    };
    let state = SharedSlice::new(state.as_mut_slice());
    let target = RowsMut::new(&mut out, HEADS * DIM);
    best(|| {
        let job = |worker: &Worker<'_>| {
            for _ in 0..steps {
                // SAFETY: parts are a worker's own; the barrier separates the steps.
                unsafe { delta_rule(isa, rule, state, worker.share(rule.parts(), 1), target.alias()) };
                worker.barrier();
            }
        };
        pool.run(&job).expect("a run");
    })
}

fn main() {
    let asked = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let pool = Pool::new(PoolOptions { threads: asked.unwrap_or(0), pin: true }).expect("threads");
    for isa in CpuIsa::available().into_iter().skip(1) {
        println!("{} threads, {isa}", pool.threads());
        let apart = 512.0 / seconds(&pool, isa, 1, 1, 512);
        println!("  a row a step            {apart:9.0} rows/s");
        for rows in [2, 16, 64, 512] {
            let together = rows as f64 / seconds(&pool, isa, 1, rows, 1);
            println!("  {rows:3} rows a step          {together:9.0} rows/s, {:.1} times", together / apart);
        }
        // States that no cache holds, read and written.
        let sequences = 64;
        let each = seconds(&pool, isa, sequences, 1, 1);
        let bytes = (2 * 4 * sequences * STATE) as f64;
        println!(
            "  a row of {sequences} sequences  {:9.0} rows/s, {:.1} GB/s",
            64.0 / each,
            bytes / each / 1e9
        );
    }
}
