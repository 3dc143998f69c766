//! Fused kernels give the bits of the kernels they stand for, in outputs and in states, and save the dispatches they should.

use std::collections::BTreeMap;

use conformance::Stored;
use conformance::values::Values;
use graph::backend::{Backend, Bindings, CompileOptions, StateDesc, StepInputs};
use graph::{Builder, Graph, PortKind, Tensor, rewrite};
use gristmill_gpu::{Families, GpuBackend, GpuOptions, Profile};
use tensor::ops::{Activation, KV_BLOCK, Precision};
use tensor::{DType, HostTensor, Op};

/// A layer of a transformer.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// First position and rows of each sequence, for each step.
    steps: &'static [[(u32, u32); 2]],
    hidden: usize,
    /// Query heads, KV heads, key width, value width.
    heads: [usize; 4],
    /// Pairs that are rotated.
    half: usize,
    norms: bool,
    width: usize,
    activation: Activation,
    /// Experts, and how many a row chooses.
    experts: Option<(usize, usize)>,
    /// Of the matrices, of `v`, of the cache.
    types: [DType; 3],
}

/// One row at last, in a bucket of several.
const PROMPT: &[[(u32, u32); 2]] = &[[(0, 9), (0, 4)], [(9, 1), (4, 3)], [(10, 1), (7, 0)]];
/// One row at a time.
const ROW: &[[(u32, u32); 2]] = &[[(0, 1), (0, 0)], [(1, 1), (0, 0)], [(0, 0), (0, 1)]];

const PLAIN: Block = Block {
    steps: PROMPT,
    hidden: 64,
    heads: [4, 2, 16, 16],
    half: 8,
    norms: true,
    width: 96,
    activation: Activation::Silu,
    experts: None,
    types: [DType::Q8_0, DType::Q8_0, DType::F16],
};

impl Block {
    fn bucket(&self) -> usize {
        self.steps.iter().map(|s| s.iter().map(|(_, n)| *n as usize).sum()).max().unwrap_or(1)
    }

    fn graph(&self) -> Graph {
        let b = Builder::new();
        let [matrix, of_v, cache] = self.types;
        let (bucket, hidden) = (self.bucket(), self.hidden);
        let [q_heads, kv_heads, dk, dv] = self.heads;
        let (rows, seqs) = (b.scalar("rows"), b.scalar("seqs"));
        let x = b.input("x", DType::F32, &[bucket, hidden], Some(rows));
        let per_row = |name: &str| b.input(name, DType::U32, &[bucket], Some(rows));
        let (pos, until) = (per_row("pos"), per_row("until"));
        let extents = b.input("extents", DType::U32, &[2], Some(seqs));
        let pages = b.input("pages", DType::U32, &[2, 1], Some(seqs));
        let plain = |name: &str, dims: &[usize]| b.weight(name, DType::F32, dims);
        let linear =
            |name: &str, dtype, n: usize, k: usize, x: Tensor| b.matmul(x, b.weight(name, dtype, &[n, k]));

        let h = b.rms_norm(x, plain("norm", &[hidden]), 1e-6);
        let q = b.reshape(linear("q", matrix, q_heads * dk, hidden, h), &[bucket, q_heads, dk]);
        let k = b.reshape(linear("k", matrix, kv_heads * dk, hidden, h), &[bucket, kv_heads, dk]);
        let v = b.reshape(linear("v", of_v, kv_heads * dv, hidden, h), &[bucket, kv_heads, dv]);
        let (q, k) = if self.norms {
            let gain = |name| plain(name, &[dk]);
            (b.rms_norm(q, gain("q_norm"), 1e-6), b.rms_norm(k, gain("k_norm"), 1e-5))
        } else {
            (q, k)
        };
        let angles = plain("angles", &[self.half]);
        let (q, k) = (b.rope(q, pos, angles, 1.25), b.rope(k, pos, angles, 1.25));
        let kv =
            b.kv_write(b.state("kv", cache, &[5, KV_BLOCK, kv_heads, dk + dv]), k, v, pos, extents, pages);
        let op = Op::Attention { scale: 0.3, window: None, softcap: None };
        let o = b.reshape(b.attention(op, q, kv, pos, until, extents, pages), &[bucket, q_heads * dv]);
        let x = b.add(x, linear("o", matrix, hidden, q_heads * dv, o));
        let h = b.rms_norm(x, plain("norm2", &[hidden]), 1e-6);
        let y = match self.experts {
            None => {
                let gate = linear("gate", matrix, self.width, hidden, h);
                let up = linear("up", matrix, self.width, hidden, h);
                let y = b.mul(b.activate(self.activation, gate), up);
                linear("down", matrix, hidden, self.width, y)
            }
            Some((experts, chosen)) => {
                let stack = |name: &str, n, k| b.weight(name, matrix, &[experts, n, k]);
                let (weights, ids) = b.route(linear("router", DType::F32, experts, hidden, h), chosen, true);
                let gate = b.expert_matmul(h, stack("gates", self.width, hidden), ids);
                let up = b.expert_matmul(h, stack("ups", self.width, hidden), ids);
                let y = b.mul(b.activate(self.activation, gate), up);
                b.expert_sum(b.expert_matmul(y, stack("downs", hidden, self.width), ids), weights)
            }
        };
        b.output("y", b.add(x, y));
        b.finish().expect("the graph of a layer")
    }

    /// Dispatches that sibling products and the other rewrites save, and those that fused kernels do.
    fn saves(&self, precision: Precision) -> [usize; 2] {
        let [matrix, of_v, _] = self.types;
        let siblings = if matrix == of_v { 2 } else { 1 } + usize::from(self.experts.is_none());
        // Activation and product, add and norm.
        let rewritten = siblings + 2;
        let quantised = precision == Precision::Fast && matrix.is_quantised();
        // Of the second norm's codes, the first product that wants them is behind the router's where there is one.
        let codes = usize::from(quantised) * if self.experts.is_none() { 2 } else { 1 };
        let rope_kv = if self.norms { 4 } else { 2 };
        let gated = if self.experts.is_none() { 1 } else { 2 };
        [rewritten, codes + rope_kv + gated]
    }
}

/// The bits of the outputs of every step, the state behind the last, and the dispatches of a step.
#[derive(PartialEq)]
struct Ran {
    outputs: Vec<Vec<u32>>,
    state: Vec<u32>,
    dispatches: usize,
}

fn run(
    gpu: &GpuBackend,
    block: &Block,
    graph: &Graph,
    weights: &BTreeMap<String, HostTensor>,
    precision: Precision,
) -> Ran {
    let mut bindings = Bindings::default();
    for desc in graph.weights() {
        let packed = gpu.weight(&desc, &Stored(&weights[&desc.name])).expect("weights");
        bindings.weights.insert(desc.name, packed);
    }
    let port = graph.ports.iter().find(|p| p.kind == PortKind::State).expect("a cache");
    let desc = StateDesc { name: port.name.clone(), dtype: port.dtype, shape: port.shape };
    let cache = gpu.state(&desc).expect("a state");
    bindings.states.insert(desc.name, cache.clone());
    let options = CompileOptions { label: "layer".into(), precision, profile: false };
    let plan = gpu.compile(graph, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut instance = plan.instance(&bindings).unwrap_or_else(|e| panic!("{e}"));
    let mut values = Values::new("steps");
    let mut outputs = vec![];
    for segments in block.steps {
        let pos: Vec<u32> = segments.iter().flat_map(|(first, n)| *first..first + n).collect();
        let until: Vec<u32> = pos.iter().map(|p| p + 1).collect();
        let extents = segments.map(|(_, n)| n);
        let x = values.rows(&[pos.len(), block.hidden]);
        let step = StepInputs {
            inputs: &[("pos", &pos), ("until", &until), ("extents", &extents), ("pages", &[3, 1])],
            floats: &[("x", x.f32s().expect("F32"))],
            scalars: &[("rows", pos.len() as u32), ("seqs", 2)],
            outputs: &["y"],
        };
        let encoded = instance.encode(&step).unwrap_or_else(|e| panic!("{e}"));
        pollster::block_on(instance.submit(encoded)).unwrap_or_else(|e| panic!("{e}"));
        outputs.push(instance.output("y").expect("y").iter().map(|y| y.to_bits()).collect());
    }
    let state = gpu.state_words(&cache).expect("a copy").expect("a state of this device");
    Ran { outputs, state, dispatches: plan.report().selections.len() }
}

fn check(profile: Profile, blocks: &[Block]) {
    let open = |no_fusion| {
        let families = Families { no_fusion, ..Families::default() };
        let options = GpuOptions { profile, families, ..GpuOptions::default() };
        pollster::block_on(GpuBackend::open("gpu", &options)).unwrap_or_else(|e| panic!("{e}"))
    };
    let (fused, composed) = (open(false), open(true));
    for block in blocks {
        let plain = block.graph();
        let mut rewritten = plain.clone();
        rewrite::standard(&mut rewritten);
        let mut values = Values::new("weights");
        let mut weights = BTreeMap::new();
        for desc in plain.weights() {
            let tensor = match &desc.name[..] {
                "angles" => values.floats(&[block.half], 0.5),
                _ => values.weights(desc.dtype, desc.shape.dims()),
            };
            weights.insert(desc.name, tensor);
        }
        for precision in [Precision::Exact, Precision::Fast] {
            let want = run(&composed, block, &plain, &weights, precision);
            let finite = |word: &u32| f32::from_bits(*word).is_finite();
            assert!(want.outputs.iter().flatten().all(finite) && want.state.iter().any(|w| *w != 0));
            let siblings = run(&composed, block, &rewritten, &weights, precision);
            let all = run(&fused, block, &rewritten, &weights, precision);
            for (what, have) in [("rewritten", &siblings), ("fused", &all)] {
                assert!(have.outputs == want.outputs, "{what}, outputs, {precision:?}, {block:?}");
                assert!(have.state == want.state, "{what}, the cache, {precision:?}, {block:?}");
            }
            let saved = [want.dispatches - siblings.dispatches, siblings.dispatches - all.dispatches];
            assert_eq!(saved, block.saves(precision), "{precision:?}, {block:?}");
        }
    }
}

#[test]
fn within_the_limits_of_webgpu() {
    use DType as D;
    check(
        Profile::WebGpu,
        &[
            PLAIN,
            Block { steps: ROW, types: [D::Q4_0, D::Q4_0, D::F32], ..PLAIN },
            Block { norms: false, half: 5, heads: [4, 2, 24, 8], activation: Activation::GeluTanh, ..PLAIN },
            Block {
                heads: [8, 8, 32, 32],
                half: 16,
                hidden: 256,
                width: 256,
                types: [D::Q4_K, D::Q6_K, D::F16],
                ..PLAIN
            },
            Block {
                hidden: 37,
                width: 53,
                heads: [5, 5, 7, 7],
                half: 3,
                types: [D::F16, D::F32, D::F32],
                ..PLAIN
            },
            Block {
                steps: ROW,
                hidden: 37,
                width: 1,
                norms: false,
                types: [D::BF16, D::BF16, D::F16],
                ..PLAIN
            },
            Block { heads: [2, 1, 160, 160], half: 80, activation: Activation::GeluErf, ..PLAIN },
            Block { experts: Some((5, 2)), width: 64, ..PLAIN },
            Block {
                steps: ROW,
                experts: Some((4, 3)),
                width: 32,
                types: [D::Q5_1, D::Q5_1, D::F16],
                ..PLAIN
            },
        ],
    );
}

#[test]
fn with_all_features() {
    let few = [
        PLAIN,
        Block { steps: ROW, width: 160, types: [DType::Q4_0, DType::Q4_0, DType::F16], ..PLAIN },
        Block { experts: Some((5, 2)), width: 64, ..PLAIN },
    ];
    check(Profile::Adapter, &few);
}
