//! States on the device.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use graph::backend::{DeviceError, StateDesc};
use graph::{Graph, Node, Port};
use tensor::ops::KV_BLOCK;
use tensor::{DType, Op, Shape};

use crate::device::Gpu;

/// A state: one zeroed buffer.
pub(crate) struct GpuState {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) name: String,
    dtype: DType,
    shape: Shape,
    /// Elements of a key, once a plan that uses the state as a KV cache is bound to it.
    k_dim: OnceLock<usize>,
}

/// A state as a plan uses it.
pub(crate) struct StateInfo {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// Elements of a key, where it is a KV cache.
    pub(crate) k_dim: Option<usize>,
}

impl StateInfo {
    /// A state of a graph, with the width of keys that the ops on it have.
    pub(crate) fn new(graph: &Graph, port: &Port) -> StateInfo {
        let keys = |node: &Node| {
            let cached = matches!(node.op, Op::KvWrite | Op::Attention { .. });
            let state = node.op.state_operand().and_then(|i| graph.port_of(node.inputs[i]));
            let own = cached && state.is_some_and(|state| graph.port(state).name == port.name);
            own.then(|| graph.value(node.inputs[0]).layout.shape.last())
        };
        let k_dim = graph.nodes.iter().find_map(keys);
        StateInfo { name: port.name.clone(), dtype: port.dtype, shape: port.shape, k_dim }
    }
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
        let (name, dtype, shape) = (desc.name.clone(), desc.dtype, desc.shape);
        Ok(GpuState { gpu: gpu.clone(), buffer, name, dtype, shape, k_dim: OnceLock::new() })
    }

    /// Whether this is the state that a plan describes. The first plan that says how wide keys are decides it for all: where
    /// rows lie depends on it.
    pub(crate) fn fits(&self, gpu: &Arc<Gpu>, want: &StateInfo) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
            && (self.dtype, self.shape) == (want.dtype, want.shape)
            && want.k_dim.is_none_or(|k_dim| *self.k_dim.get_or_init(|| k_dim) == k_dim)
    }

    /// Entries of the first axis.
    pub(crate) fn entries(&self) -> usize {
        self.shape.dims().first().copied().unwrap_or(0)
    }

    /// The pieces of an entry: how many, and the words of each. A block of a KV cache has one for each head.
    fn pieces(&self) -> Result<(usize, usize), DeviceError> {
        match (self.shape.dims(), self.dtype, self.k_dim.get()) {
            (&[_, KV_BLOCK, heads, width], _, Some(k_dim)) => {
                Ok((heads, KV_BLOCK * kv_row_words(self.dtype, *k_dim, width - k_dim).1))
            }
            (&[_, KV_BLOCK, ..], DType::F16, None) => Err(DeviceError::Binding {
                port: self.name.clone(),
                problem: "no plan says yet how its rows lie".into(),
            }),
            (&[entries, KV_BLOCK, heads, _], ..) => {
                Ok((heads, self.shape.elements().checked_div(entries * heads).unwrap_or(0)))
            }
            _ => Ok((1, self.shape.elements().checked_div(self.entries()).unwrap_or(0))),
        }
    }

    /// Words of an entry.
    pub(crate) fn entry_words(&self) -> Result<usize, DeviceError> {
        let (pieces, words) = self.pieces()?;
        Ok(pieces * words)
    }

    /// Where the words of these entries lie, in the order in which they are listed: adjacent ones together.
    pub(crate) fn places(&self, entries: &[u32]) -> Result<Vec<Range<usize>>, DeviceError> {
        let (pieces, words) = self.pieces()?;
        let mut places: Vec<Range<usize>> = vec![];
        for entry in entries {
            for piece in 0..pieces {
                let at = (piece * self.entries() + *entry as usize) * words;
                match places.last_mut() {
                    Some(last) if last.end == at => last.end += words,
                    _ => places.push(at..at + words),
                }
            }
        }
        Ok(places)
    }
}
