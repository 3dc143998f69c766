//! What graphs are compiled to.

use graph::backend::{CompileOptions, Precision};
use graph::{Builder, Graph};
use tensor::{DType, Op};

use super::instance::CpuPlan;
use super::steps::Step;
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
