//! Where kernels for many rows do not agree with those for one, one kernel serves all, and the plan says so.

use conformance::Stored;
use conformance::values::Values;
use graph::Builder;
use graph::backend::{Backend, Bindings, CompileOptions, StepInputs};
use gristmill_gpu::{Families, GpuBackend, GpuOptions, Profile};
use tensor::ops::Precision;
use tensor::{DType, HostTensor};

const K: usize = 512;
const N: usize = 21;

/// The product's kernel, why it was chosen, and the bits of the product.
fn run(gpu: &GpuBackend, bucket: usize, x: &[f32], w: &HostTensor) -> (String, String, Vec<u32>) {
    let b = Builder::new();
    let rows = b.scalar("rows");
    let input = b.input("x", DType::F32, &[bucket, K], Some(rows));
    b.output("y", b.matmul(input, b.weight("w", w.dtype(), &[N, K])));
    let graph = b.finish().expect("a product");
    let mut bindings = Bindings::default();
    let packed = gpu.weight(&graph.weights()[0], &Stored(w)).expect("weights");
    bindings.weights.insert("w".into(), packed);
    let options = CompileOptions { label: "product".into(), precision: Precision::Fast, profile: false };
    let plan = gpu.compile(&graph, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut instance = plan.instance(&bindings).unwrap_or_else(|e| panic!("{e}"));
    let mut bits = vec![];
    for x in x.chunks(bucket * K) {
        let scalars = [("rows", (x.len() / K) as u32)];
        let step = StepInputs { inputs: &[], floats: &[("x", x)], scalars: &scalars, outputs: &["y"] };
        let encoded = instance.encode(&step).unwrap_or_else(|e| panic!("{e}"));
        pollster::block_on(instance.submit(encoded)).unwrap_or_else(|e| panic!("{e}"));
        bits.extend(instance.output("y").expect("y").iter().map(|y| y.to_bits()));
    }
    let product =
        plan.report().selections.iter().find(|s| s.kernel.starts_with("matmul")).expect("a product");
    (product.kernel.clone(), product.reason.clone(), bits)
}

#[test]
fn one_kernel_serves_where_several_disagree() {
    let mut values = Values::new("agreement");
    let x = values.floats(&[11, K], 1.0);
    let x = x.f32s().expect("F32");
    let w = values.weights(DType::Q4_K, &[N, K]);
    let mut all = vec![];
    for no_agreement in [false, true] {
        let families = Families { no_agreement, ..Families::default() };
        let options = GpuOptions { profile: Profile::WebGpu, families, ..GpuOptions::default() };
        let gpu = pollster::block_on(GpuBackend::open("gpu", &options)).unwrap_or_else(|e| panic!("{e}"));
        let [one, many] = [1, 4].map(|bucket| run(&gpu, bucket, x, &w));
        assert_eq!(one.0 == many.0, no_agreement, "{} and {}", one.0, many.0);
        assert_eq!(many.1.contains("does not agree"), no_agreement, "{}", many.1);
        all.extend([one.2, many.2]);
    }
    assert!(all.iter().all(|bits| *bits == all[0] && bits.len() == 11 * N));
}
