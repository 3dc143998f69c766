//! What graphs are compiled to.

use graph::backend::{CompileOptions, Precision};
use graph::{Builder, Graph};
use tensor::ops::Activation;
use tensor::{DType, Op};

use super::instance::CpuPlan;
use super::steps::{Planned, Step};
use super::{CpuBackend, CpuOptions, compile};

fn plan(graph: &Graph, precision: Precision) -> CpuPlan {
    let backend = CpuBackend::new(CpuOptions { threads: 1, isa: None }).unwrap();
    let options = CompileOptions { label: "test".to_owned(), precision, profile: false };
    compile::compile(backend.shared.clone(), graph, &options).unwrap()
}

/// Layers that rotate by one set of angles share its computation, whatever they rotate; others do not.
#[test]
fn angles_are_computed_once_a_plan() {
    let b = Builder::new();
    let x = b.input("x", DType::F32, &[7, 2, 16], None);
    let [pos, other] = ["pos", "other"].map(|name| b.input(name, DType::U32, &[7], None));
    let [slow, fast] = ["slow", "fast"].map(|name| b.weight(name, DType::F32, &[6]));
    let mut y = x;
    for _ in 0..3 {
        y = b.add(b.rope(y, pos, slow, 1.0), b.rope(x, pos, slow, 1.0));
    }
    y = b.rope(y, pos, slow, 1.5);
    y = b.rope(y, other, slow, 1.0);
    y = b.rope(b.rope(y, pos, fast, 1.0), pos, fast, 1.0);
    b.output("y", y);
    let plan = plan(&b.finish().unwrap(), Precision::Exact);
    let count =
        |which: fn(&Step) -> bool| plan.inner.steps.iter().filter(|planned| which(&planned.step)).count();
    assert_eq!(count(|step| matches!(step, Step::Rope { .. })), 10);
    assert_eq!(count(|step| matches!(step, Step::Angles { .. })), 4);
    // Each before the first rotation that reads it.
    let mut known = vec![];
    for planned in &plan.inner.steps {
        match &planned.step {
            Step::Angles { cos, sin, .. } => known.push((cos.at, sin.at)),
            Step::Rope { cos, sin, .. } => assert!(known.contains(&(cos.at, sin.at))),
            _ => {}
        }
    }
}

/// Siblings of one product may have formats that different kernels multiply: the report names them all.
#[test]
fn selections_name_every_format_of_siblings() {
    let b = Builder::new();
    let x = b.input("x", DType::F32, &[4, 256], None);
    let w = |name, dtype| b.weight(name, dtype, &[8, 256]);
    let operands = [x, w("q", DType::Q4_K), w("k", DType::Q6_K), w("v", DType::Q4_K), w("gate", DType::F16)];
    for (i, y) in b.op(Op::MatMuls { biased: vec![false; 4] }, &operands).into_iter().enumerate() {
        b.output(&format!("y{i}"), y);
    }
    let graph = b.finish().unwrap();
    for (precision, kernels) in
        [(Precision::Fast, &["matmul_i8", "matmul_f32"][..]), (Precision::Exact, &["matmul_f32"])]
    {
        let report = plan(&graph, precision).report;
        let (selection, before) = report.selections.split_last().unwrap();
        assert!(before.iter().all(|s| s.op == "quantise"), "{report}");
        let formats: Vec<&str> =
            selection.operands.split_whitespace().filter_map(|o| o.split_once('[')).map(|o| o.0).collect();
        assert_eq!(formats, ["F32", "Q4_K", "Q6_K", "Q4_K", "F16"], "{}", selection.operands);
        let (named, _) = selection.kernel.split_once('/').unwrap();
        assert_eq!(named, kernels.join(" + "));
        assert_eq!(selection.reason.split("; ").count(), kernels.len(), "{}", selection.reason);
    }
}

/// A layer of a Llama with one block-of-32 format, after the standard rewrites.
fn layer() -> Graph {
    let b = Builder::new();
    let rows = b.scalar("rows");
    let x = b.input("x", DType::F32, &[8, 64], Some(rows));
    let [pos, until] = ["pos", "until"].map(|name| b.input(name, DType::U32, &[8], Some(rows)));
    let extents = b.input("extents", DType::U32, &[1], None);
    let pages = b.input("pages", DType::U32, &[1, 40], None);
    let angles = b.weight("angles", DType::F32, &[16]);
    let norm = |x, name: &str| b.rms_norm(x, b.weight(name, DType::F32, &[64]), 1e-6);
    let product = |x, name: &str, n: usize| b.matmul(x, b.weight(name, DType::Q8_0, &[n, 64]));
    let h = norm(x, "norm");
    let heads = |name: &str, n: usize| b.reshape(product(h, name, 32 * n), &[8, n, 32]);
    let (q, k, v) = (heads("q", 2), heads("k", 1), heads("v", 1));
    let [q, k] = [q, k].map(|x| b.rope(x, pos, angles, 1.0));
    let kv = b.kv_write(b.state("kv", DType::F16, &[40, 16, 1, 64]), k, v, pos, extents, pages);
    let op = Op::Attention { scale: 1.0, window: None, softcap: None };
    let y = b.attention(op, q, kv, pos, until, extents, pages);
    let x = b.add(x, product(b.reshape(y, &[8, 64]), "o", 64));
    let h = norm(x, "second norm");
    let gated = b.mul(b.activate(Activation::Silu, product(h, "gate", 64)), product(h, "up", 64));
    b.output("y", b.add(x, product(gated, "down", 64)));
    let mut graph = b.finish().unwrap();
    graph::rewrite::standard(&mut graph);
    graph
}

/// What a decode step costs beside its products: every barrier of a layer has a reason.
#[test]
fn workers_meet_where_one_needs_what_others_made() {
    let plan = plan(&layer(), Precision::Fast);
    let met = |planned: &Planned| {
        let selection = &plan.report.selections[planned.selection];
        (selection.kernel.split('/').next().unwrap().to_owned(), planned.waits)
    };
    let steps: Vec<_> = plan.inner.steps.iter().map(met).collect();
    let wanted = [
        ("rms_norm", false),
        ("quantise", false),
        ("matmul_i8", true),
        // Its tables do not depend on the product.
        ("angles", false),
        ("rope", true),
        ("rope", false),
        ("kv_write", false),
        ("paged_attention", true),
        ("matmul_i8", true),
        ("add_rms_norm", true),
        ("quantise", false),
        ("gated_matmul_i8", true),
        ("matmul_i8", true),
        ("rows", true),
    ];
    assert_eq!(steps, wanted.map(|(kernel, waits)| (kernel.to_owned(), waits)));
}

/// Attention reads what workers left for each other while the first blocks are made.
#[test]
fn blocks_of_attention_lie_behind_its_partials() {
    let plan = plan(&layer(), Precision::Fast);
    let steps = plan.inner.steps.iter().filter_map(|planned| match &planned.step {
        Step::Attention(step) => Some((step.partials, step.blocks)),
        _ => None,
    });
    let [((at, words), Some(blocks))] = steps.collect::<Vec<_>>()[..] else {
        panic!("one, which makes blocks")
    };
    assert!(words > 0 && blocks >= at + words && blocks.is_multiple_of(16));
    assert!(plan.inner.arena_bytes >= 4 * (blocks + 8 * 2 * 16));
}
