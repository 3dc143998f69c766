//! The cases on the CPU: all of them with the best instruction set of this machine, those without large shapes with
//! every other.

use cpu::isa::CpuIsa;
use cpu::{CpuBackend, CpuOptions};
use gristmill_conformance::run;

/// Heads whose keys and values have different widths.
const WITHOUT_KERNEL: &str = "keys and values must have equally many elements per head";

#[test]
fn the_cpu_agrees_with_the_references() {
    let best = CpuIsa::detect().to_string();
    for isa in CpuIsa::available() {
        let backend = CpuBackend::new(CpuOptions { threads: 2, isa: Some(isa) }).unwrap();
        let whole = isa.to_string() == best;
        let report = run(&backend, |c| whole || !(c.class.contains("large") || c.class == "long"));
        println!("{isa}\n{report}");
        assert!(report.failures.is_empty(), "{isa}\n{report}");
        // What the CPU refuses so far, by its own words. Anything else that it refuses is a failure.
        let known = |reason: &str| reason.contains(WITHOUT_KERNEL);
        assert!(report.unsupported.iter().all(|(_, reason)| known(reason)), "{isa}\n{report}");
        let ran: usize = report.rows.iter().flat_map(|(_, cells)| cells.values()).map(|c| c.passed).sum();
        assert!(ran > 300, "{isa}: {ran} cases passed");
    }
}
