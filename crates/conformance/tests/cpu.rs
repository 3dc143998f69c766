//! Every case on the CPU, on two threads and with each instruction set that this machine has.

use cpu::{CpuBackend, CpuOptions};
use gristmill_conformance::run;

#[test]
fn the_cpu_agrees_with_the_references() {
    let backend = CpuBackend::new(CpuOptions { threads: 2, isa: None }).unwrap();
    let report = run(&backend, |_| true);
    println!("{report}");
    assert!(report.passed(), "{report}");
}
