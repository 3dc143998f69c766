//! The cases on the CPU: all of them with the best instruction set of this machine, those without large shapes with
//! every other.

use cpu::isa::CpuIsa;
use cpu::{CpuBackend, CpuOptions};
use gristmill_conformance::run;

#[test]
fn the_cpu_agrees_with_the_references() {
    let best = CpuIsa::detect().to_string();
    for isa in CpuIsa::available() {
        let backend = CpuBackend::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap();
        let whole = isa.to_string() == best;
        let report = run(&backend, |c| whole || !(c.class.contains("large") || c.class == "long"));
        println!("{isa}\n{report}");
        assert!(report.passed(), "{isa}\n{report}");
    }
}
