//! What graphs are compiled to.

use graph::backend::{CompileOptions, Precision};
use graph::{Builder, Graph};
use tensor::DType;

use super::instance::CpuPlan;
use super::steps::Step;
use super::{CpuBackend, CpuOptions, compile};

fn plan(graph: &Graph, threads: usize) -> CpuPlan {
    let backend = CpuBackend::new(CpuOptions { threads, isa: None }).unwrap();
    let options = CompileOptions { label: "test".to_owned(), precision: Precision::Exact };
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
    let plan = plan(&b.finish().unwrap(), 1);
    let count = |which: fn(&Step) -> bool| plan.inner.steps.iter().filter(|step| which(step)).count();
    assert_eq!(count(|step| matches!(step, Step::Rope { .. })), 10);
    assert_eq!(count(|step| matches!(step, Step::Angles { .. })), 4);
    // Each before the first rotation that reads it.
    let mut known = vec![];
    for step in &plan.inner.steps {
        match step {
            Step::Angles { cos, sin, .. } => known.push((cos.place, sin.place)),
            Step::Rope { cos, sin, .. } => assert!(known.contains(&(cos.place, sin.place))),
            _ => {}
        }
    }
}
