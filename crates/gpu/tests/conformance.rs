//! The conformance suite on the first adapter of this machine.

use conformance::run;
use gristmill_gpu::{GpuBackend, GpuOptions, Profile};

fn open(profile: Profile) -> GpuBackend {
    let options = GpuOptions { profile, ..GpuOptions::default() };
    pollster::block_on(GpuBackend::open("gpu", &options))
        .expect("an adapter: see CONTRIBUTING for a software one")
}

#[test]
fn portable_kernels() {
    let report = run(&open(Profile::WebGpu), |_| true);
    println!("{report}");
    assert!(report.failures.is_empty() && report.unsupported.is_empty(), "see above");
}
