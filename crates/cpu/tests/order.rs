//! Kernels between which workers do not meet, and those that leave what the next one reads, give the bits of one worker with one
//! step a node. That a barrier is missing shows here only sometimes: where they must lie is tested in `backend/order.rs`.

use std::collections::BTreeMap;

use conformance::Stored;
use conformance::values::Values;
use graph::backend::{Backend, Bindings, CompileOptions, StateDesc, StepInputs};
use graph::{Builder, Graph, rewrite};
use gristmill_cpu::{CpuBackend, CpuOptions};
use tensor::ops::{Activation, Precision};
use tensor::{DType, HostTensor, Op, Shape};

const BUCKET: usize = 70;
/// So wide that few rows are divided by columns.
const HIDDEN: usize = 2304;
const HEADS: usize = 12;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
/// Blocks of 16 positions: more keys than one worker takes at once.
const BLOCKS: usize = 48;

/// Attention with norms of heads, and what follows it by rows and by columns. `apart` has a node more between attention and the
/// product that reads it.
fn layer(apart: bool) -> Graph {
    let b = Builder::new();
    let rows = b.scalar("rows");
    let x = b.input("x", DType::F32, &[BUCKET, HIDDEN], Some(rows));
    let [pos, until] = ["pos", "until"].map(|name| b.input(name, DType::U32, &[BUCKET], Some(rows)));
    let extents = b.input("extents", DType::U32, &[1], None);
    let pages = b.input("pages", DType::U32, &[1, BLOCKS], None);
    let angles = b.weight("angles", DType::F32, &[DIM / 2]);
    let norm = |x, name: &str, width| b.rms_norm(x, b.weight(name, DType::F32, &[width]), 1e-6);
    let product = |x, name: &str, [n, k]: [usize; 2]| b.matmul(x, b.weight(name, DType::Q8_0, &[n, k]));

    let h = norm(x, "norm", HIDDEN);
    let heads = |name: &str, n: usize| b.reshape(product(h, name, [n * DIM, HIDDEN]), &[BUCKET, n, DIM]);
    let [q, k, v] = [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)].map(|(name, n)| heads(name, n));
    let [q, k] = [(q, "q norm"), (k, "k norm")].map(|(x, name)| b.rope(norm(x, name, DIM), pos, angles, 1.0));
    let cache =
        b.kv_write(b.state("kv", DType::F16, &[BLOCKS, 16, KV_HEADS, 2 * DIM]), k, v, pos, extents, pages);
    let op = Op::Attention { scale: 0.125, window: None, softcap: None };
    let mut y = b.attention(op, q, cache, pos, until, extents, pages);
    if apart {
        y = b.scale(y, 1.0);
    }
    let y = b.add(x, product(b.reshape(y, &[BUCKET, HEADS * DIM]), "o", [HIDDEN, HEADS * DIM]));
    // By rows, by columns, and by rows again.
    let second = norm(y, "second norm", HIDDEN);
    let half = b.scale(y, 0.5);
    let y = b.add(y, b.mul(b.activate(Activation::Silu, second), half));
    b.output("y", product(norm(y, "last norm", HIDDEN), "down", [96, HIDDEN]));
    let mut graph = b.finish().expect("the graph of a layer");
    rewrite::standard(&mut graph);
    graph
}

/// The bits of steps of many and of few rows of one sequence.
fn run(graph: &Graph, threads: usize, weights: &BTreeMap<String, HostTensor>) -> Vec<Vec<u32>> {
    let cpu = CpuBackend::new(CpuOptions { threads, isa: None }).expect("threads");
    let mut bindings = Bindings::default();
    for desc in graph.weights() {
        let packed = cpu.weight(&desc, &Stored(&weights[&desc.name])).expect("weights");
        bindings.weights.insert(desc.name, packed);
    }
    let shape = Shape::new(&[BLOCKS, 16, KV_HEADS, 2 * DIM]).expect("a shape");
    let cache = cpu.state(&StateDesc { name: "kv".into(), dtype: DType::F16, shape }).expect("a cache");
    bindings.states.insert("kv".into(), cache);
    let options = CompileOptions { label: "layer".into(), precision: Precision::Fast, profile: false };
    let plan = cpu.compile(graph, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut instance = plan.instance(&bindings).unwrap_or_else(|e| panic!("{e}"));
    let pages: Vec<u32> = (0..BLOCKS as u32).rev().collect();
    let (mut values, mut outputs, mut at) = (Values::new("steps"), vec![], 0);
    for rows in [1, 3].into_iter().chain([BUCKET; 9]).chain([5, 1, 3, 1, 2]) {
        let x = values.rows(&[rows, HIDDEN]);
        let pos: Vec<u32> = (at..at + rows as u32).collect();
        let until: Vec<u32> = pos.iter().map(|pos| pos + 1).collect();
        at += rows as u32;
        let step = StepInputs {
            floats: &[("x", x.f32s().expect("F32"))],
            scalars: &[("rows", rows as u32)],
            outputs: &["y"],
            inputs: &[("pos", &pos), ("until", &until), ("extents", &[rows as u32]), ("pages", &pages)],
        };
        let encoded = instance.encode(&step).unwrap_or_else(|e| panic!("{e}"));
        pollster::block_on(instance.submit(encoded)).unwrap_or_else(|e| panic!("{e}"));
        outputs.push(instance.output("y").expect("an output").iter().map(|y| y.to_bits()).collect());
    }
    outputs
}

#[test]
fn a_layer_has_the_bits_of_its_nodes_on_one_worker() {
    let [whole, apart] = [false, true].map(layer);
    let weights = Values::new("weights").weights_of(&whole);
    let want = run(&apart, 1, &weights);
    assert!(want.iter().flatten().all(|y| f32::from_bits(*y).is_finite()));
    for threads in [1, 2, 3, 8] {
        for _ in 0..3 {
            assert!(run(&whole, threads, &weights) == want, "{threads} threads");
        }
    }
}
