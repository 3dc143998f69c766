//! States on the device.

use std::sync::Arc;

use graph::backend::{DeviceError, StateDesc};
use tensor::ops::KV_BLOCK;
use tensor::{DType, Shape};

use crate::device::Gpu;

/// A state: one zeroed buffer.
pub(crate) struct GpuState {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) buffer: wgpu::Buffer,
    dtype: DType,
    shape: Shape,
}

/// Words of a position's row in a KV cache: keys, values, and for halves the two factors.
pub(crate) fn kv_row_words(dtype: DType, k_dim: usize, v_dim: usize) -> (usize, usize) {
    match dtype {
        DType::F16 => (k_dim.div_ceil(2), k_dim.div_ceil(2) + v_dim.div_ceil(2) + 2),
        _ => (k_dim, k_dim + v_dim),
    }
}

/// Words of a state. A KV cache `[blocks, 16, heads, Dk + Dv]` has room for any division of its rows.
pub(crate) fn words(desc: &StateDesc) -> usize {
    match (desc.shape.dims(), desc.dtype) {
        (&[blocks, KV_BLOCK, heads, width], DType::F16) => blocks * KV_BLOCK * heads * (width / 2 + 3),
        _ => desc.shape.elements(),
    }
}

impl GpuState {
    pub(crate) fn new(gpu: &Arc<Gpu>, desc: &StateDesc) -> Result<GpuState, DeviceError> {
        gpu.check()?;
        let what = format!("state `{}`", desc.name);
        let bytes = 4 * words(desc) as u64;
        if bytes > gpu.binding_limit() {
            return Err(DeviceError::Memory {
                device: "gpu".into(),
                what: format!(
                    "{what}, of which kernels can see {} bytes here; a smaller context needs less",
                    gpu.binding_limit()
                ),
                bytes,
            });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let buffer = gpu.buffer(&what, bytes, usage)?;
        Ok(GpuState { gpu: gpu.clone(), buffer, dtype: desc.dtype, shape: desc.shape })
    }

    /// Whether this is a state that a port describes.
    pub(crate) fn fits(&self, gpu: &Arc<Gpu>, dtype: DType, shape: Shape) -> bool {
        Arc::ptr_eq(&self.gpu, gpu) && self.dtype == dtype && self.shape == shape
    }
}
