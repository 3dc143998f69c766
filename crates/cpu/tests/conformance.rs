//! The CPU backend passes the conformance suite: all cases with the best instruction set of this machine, those without
//! large shapes with every other.

use gristmill_cpu::isa::CpuIsa;
use gristmill_cpu::{CpuBackend, CpuOptions};

#[test]
fn every_op_agrees_with_its_reference() {
    let best = CpuIsa::detect();
    for isa in CpuIsa::available() {
        let backend = CpuBackend::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap();
        let all = isa == best;
        let report = conformance::run(&backend, |c| all || !(c.class.contains("large") || c.class == "long"));
        println!("{isa}\n{report}");
        assert!(report.passed(), "{isa}\n{report}");
        let passed: usize = report.rows.iter().flat_map(|(_, cells)| cells.values()).map(|c| c.passed).sum();
        assert!(passed > 300, "{isa}: {passed} cases passed");
    }
}

#[test]
fn entries_of_states_go_to_the_host_and_back() {
    for isa in CpuIsa::available() {
        let backend = CpuBackend::new(CpuOptions { threads: 3, isa: Some(isa) }).unwrap();
        conformance::states(&backend).unwrap_or_else(|problem| panic!("{isa}: {problem}"));
    }
}
