//! What a GPU refuses to compile, and why.

use graph::backend::{Backend, CompileOptions, DeviceError};
use graph::{Builder, Graph};
use gristmill_gpu::{GpuBackend, GpuOptions};
use tensor::DType;
use tensor::ops::Precision;

fn with_scalars(count: usize) -> Graph {
    let b = Builder::new();
    let scalars: Vec<_> = (0..count).map(|i| b.scalar(&format!("n{i}"))).collect();
    let x = b.input("x", DType::F32, &[4, 8], scalars.last().copied());
    b.output("y", b.add(x, x));
    b.finish().unwrap()
}

#[test]
fn more_scalars_than_kernels_see() {
    let gpu = pollster::block_on(GpuBackend::open("gpu", &GpuOptions::default())).unwrap();
    let options = CompileOptions { label: "test".to_owned(), precision: Precision::Exact, profile: false };
    assert!(gpu.compile(&with_scalars(8), &options).is_ok());
    match gpu.compile(&with_scalars(9), &options) {
        Err(DeviceError::Unsupported { reason, .. }) => assert!(reason.contains("9 scalars"), "{reason}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("compiled"),
    }
}
