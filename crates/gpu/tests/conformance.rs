//! The conformance suite on the first adapter of this machine. Without one the tests fail: the message says what to install.

use std::hash::{DefaultHasher, Hash, Hasher};

use conformance::{Case, Report, run};
use gristmill_gpu::{GpuBackend, GpuOptions, Profile};

/// Another seed is another slice.
const SEED: u64 = 30;

fn open(profile: Profile) -> GpuBackend {
    let options = GpuOptions { profile, ..GpuOptions::default() };
    pollster::block_on(GpuBackend::open("gpu", &options)).unwrap_or_else(|e| panic!("{e}"))
}

fn check(report: &Report) {
    println!("{report}");
    assert!(
        !report.rows.is_empty() && report.failures.is_empty() && report.unsupported.is_empty(),
        "see above"
    );
}

#[test]
fn within_the_limits_of_webgpu() {
    check(&run(&open(Profile::WebGpu), |_| true));
}

/// A software driver takes seconds to compile some kernels, so not every case is tried each time.
#[test]
fn a_slice_with_all_features() {
    let in_slice = |case: &Case| {
        let mut hasher = DefaultHasher::new();
        (SEED, case.name()).hash(&mut hasher);
        hasher.finish().is_multiple_of(4)
    };
    check(&run(&open(Profile::Adapter), in_slice));
}

#[test]
#[ignore = "the cases of the slice and all others; `cargo xtask full` runs it"]
fn with_all_features() {
    check(&run(&open(Profile::Adapter), |_| true));
}
