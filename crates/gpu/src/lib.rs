//! The GPU backend, through wgpu: Vulkan, Metal, DX12, and WebGPU in browsers.
//!
//! A graph becomes a list of dispatches over one arena buffer that holds a step's inputs, intermediates and outputs. What
//! varies with a step is written to the start of the arena; what is fixed for a dispatch is a uniform. Kernels are WGSL
//! templates (`kernels/`), all choices between them are made in [`select`].

mod adapter;
#[cfg(not(target_arch = "wasm32"))]
mod agreement;
mod backend;
mod compile;
mod copy;
mod device;
mod fuse;
mod kernel;
mod memory;
mod operand;
mod pack;
mod plan;
#[cfg(not(target_arch = "wasm32"))]
mod poll;
#[cfg(not(target_arch = "wasm32"))]
mod probe;
mod select;
mod slab;
mod state;
mod template;
mod timing;
mod transfer;
mod verdict;
mod weight;

pub use adapter::{AdapterInfo, GpuOptions, Profile, adapters};
pub use backend::GpuBackend;
pub use pack::multiplies;
#[cfg(not(target_arch = "wasm32"))]
pub use poll::THREAD as GPU_THREAD;
pub use select::Families;
pub use wgpu::Backends;

/// The adapter and its driver, for reports and fingerprints.
pub(crate) fn describe(gpu: &device::Gpu) -> String {
    format!("gpu {}", gpu.info)
}
