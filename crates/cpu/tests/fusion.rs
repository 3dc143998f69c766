//! Steps that do several nodes' work give the bits of one step a node, whatever the formats, the rows and the threads.

use std::collections::BTreeMap;

use conformance::Stored;
use conformance::values::Values;
use graph::backend::{Backend, Bindings, CompileOptions, StepInputs};
use graph::{Builder, Graph, rewrite};
use gristmill_cpu::{CpuBackend, CpuOptions};
use tensor::ops::{Activation, Precision};
use tensor::{DType, HostTensor};

const BUCKET: usize = 70;

/// A feed-forward layer: the types of gate, up and down.
#[derive(Clone, Copy, Debug)]
struct Layer {
    hidden: usize,
    width: usize,
    types: [DType; 3],
    biased: bool,
    activation: Activation,
    /// Whether somebody else wants the gate's result, or the gated one.
    kept: [bool; 2],
    /// Of a mixture of experts: how many, and how many of them a row takes.
    experts: Option<[usize; 2]>,
}

const PLAIN: Layer = Layer {
    hidden: 256,
    width: 512,
    types: [DType::Q4_K; 3],
    biased: false,
    activation: Activation::Silu,
    kept: [false; 2],
    experts: None,
};

impl Layer {
    fn graph(&self) -> Graph {
        let b = Builder::new();
        let rows = b.scalar("rows");
        let x = b.input("x", DType::F32, &[BUCKET, self.hidden], Some(rows));
        let h = b.rms_norm(x, b.weight("norm", DType::F32, &[self.hidden]), 1e-6);
        let chosen = self.experts.map(|[experts, chosen]| {
            let logits = b.matmul(h, b.weight("router", DType::F32, &[experts, self.hidden]));
            b.route(logits, chosen, true)
        });
        let product = |x, name: &str, dtype, [n, k]: [usize; 2]| match (self.experts, chosen) {
            (Some([experts, _]), Some((_, ids))) => {
                b.expert_matmul(x, b.weight(name, dtype, &[experts, n, k]), ids)
            }
            _ => b.matmul(x, b.weight(name, dtype, &[n, k])),
        };
        let [gate, up] = [("gate", self.types[0]), ("up", self.types[1])].map(|(name, dtype)| {
            let y = product(h, name, dtype, [self.width, self.hidden]);
            if !self.biased {
                return y;
            }
            b.add_row(y, b.weight(&format!("{name}_bias"), DType::F32, &[self.width]))
        });
        let gated = b.mul(b.activate(self.activation, gate), up);
        let y = product(gated, "down", self.types[2], [self.hidden, self.width]);
        let y = chosen.map_or(y, |(weights, _)| b.expert_sum(y, weights));
        b.output("y", b.add(x, y));
        let others = [("of gate", gate), ("of both", gated)];
        others.into_iter().zip(self.kept).filter(|(_, kept)| *kept).for_each(|((name, value), _)| {
            b.output(name, value);
        });
        b.finish().expect("the graph of a layer")
    }
}

/// The bits of the outputs of steps of 1, 5 and 70 rows, and the kernels.
fn run(
    graph: &Graph,
    threads: usize,
    weights: &BTreeMap<String, HostTensor>,
    precision: Precision,
) -> (Vec<Vec<u32>>, Vec<String>) {
    let cpu = CpuBackend::new(CpuOptions { threads, isa: None }).expect("threads");
    let mut bindings = Bindings::default();
    for desc in graph.weights() {
        let packed = cpu.weight(&desc, &Stored(&weights[&desc.name])).expect("weights");
        bindings.weights.insert(desc.name, packed);
    }
    let options = CompileOptions { label: "layer".into(), precision, profile: false };
    let plan = cpu.compile(graph, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut instance = plan.instance(&bindings).unwrap_or_else(|e| panic!("{e}"));
    let (mut values, mut outputs) = (Values::new("steps"), vec![]);
    let wanted: Vec<&str> = ["y", "of gate", "of both"]
        .into_iter()
        .filter(|name| {
            graph.ports.iter().any(|port| port.name == *name && port.kind == graph::PortKind::Output)
        })
        .collect();
    for rows in [1, 5, BUCKET] {
        let x = values.rows(&[rows, graph.ports[0].shape.last()]);
        let step = StepInputs {
            floats: &[("x", x.f32s().expect("F32"))],
            scalars: &[("rows", rows as u32)],
            outputs: &wanted,
            inputs: &[],
        };
        let encoded = instance.encode(&step).unwrap_or_else(|e| panic!("{e}"));
        pollster::block_on(instance.submit(encoded)).unwrap_or_else(|e| panic!("{e}"));
        for name in &wanted {
            outputs.push(instance.output(name).expect("an output").iter().map(|y| y.to_bits()).collect());
        }
    }
    (outputs, plan.report().selections.iter().map(|s| s.kernel.clone()).collect())
}

#[test]
fn a_gated_layer_has_the_bits_of_its_nodes() {
    use DType as D;
    let layers = [
        PLAIN,
        Layer { types: [D::Q4_K, D::Q6_K, D::Q8_0], biased: true, ..PLAIN },
        Layer { types: [D::Q8_0, D::F16, D::Q4_0], activation: Activation::GeluTanh, ..PLAIN },
        Layer { types: [D::Q4_1, D::Q4_1, D::F16], ..PLAIN },
        Layer { hidden: 37, width: 53, types: [D::F16, D::F32, D::BF16], ..PLAIN },
        Layer { width: 1696, types: [D::Q4_0; 3], hidden: 96, ..PLAIN },
        Layer { kept: [true, false], ..PLAIN },
        Layer { kept: [false, true], ..PLAIN },
        Layer { experts: Some([7, 3]), ..PLAIN },
        Layer { experts: Some([40, 1]), types: [D::Q4_K, D::Q6_K, D::Q8_0], ..PLAIN },
        Layer { experts: Some([5, 5]), types: [D::Q8_0, D::F16, D::F32], ..PLAIN },
        Layer { experts: Some([9, 2]), hidden: 37, width: 53, types: [D::F16, D::F32, D::BF16], ..PLAIN },
        Layer { experts: Some([4, 2]), width: 1696, hidden: 96, types: [D::Q4_0; 3], ..PLAIN },
        Layer { experts: Some([6, 2]), kept: [true, false], ..PLAIN },
        Layer { experts: Some([6, 2]), kept: [false, true], ..PLAIN },
    ];
    for layer in layers {
        let plain = layer.graph();
        let mut rewritten = plain.clone();
        rewrite::standard(&mut rewritten);
        let weights = Values::new("weights").weights_of(&plain);
        for precision in [Precision::Exact, Precision::Fast] {
            let (want, kernels) = run(&plain, 1, &weights, precision);
            assert!(want.iter().flatten().all(|y| f32::from_bits(*y).is_finite()));
            assert!(!kernels.iter().any(|k| k.contains("gated_matmul")), "{kernels:?}");
            for threads in [1, 2, 3, 8] {
                let (have, kernels) = run(&rewritten, threads, &weights, precision);
                assert!(have == want, "{threads} threads, {precision:?}, {layer:?}");
                let gated = kernels.iter().any(|k| k.contains("gated_matmul"));
                assert_eq!(gated, !layer.kept[0], "{kernels:?}");
            }
        }
    }
}
