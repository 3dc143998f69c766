//! The CPU backend passes the conformance suite on every instruction set this machine has.

use cpu::isa::CpuIsa;
use gristmill_cpu as cpu;

use cpu::{CpuBackend, CpuOptions};

#[test]
fn every_op_agrees_with_its_reference() {
    for isa in CpuIsa::available() {
        let backend = CpuBackend::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap();
        let report = conformance::run(&backend, |_| true);
        println!("{isa}\n{report}");
        assert!(report.passed(), "{isa}\n{report}");
    }
}
