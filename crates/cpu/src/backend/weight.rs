//! Packed weights.

use std::sync::Mutex;

use graph::backend::{DeviceError, RowSource, WeightDesc, WeightUse};
use tensor::{DType, blocks};

use crate::pack::{PackError, PackedMatrix, Packer};
use crate::pool::Worker;

use super::{Shared, memory_error};

/// Stored bytes that one worker packs at a time: little enough to stay in its cache between being read and being packed.
const PACK_BYTES: usize = 256 << 10;

/// A weight as the kernels read it.
pub(super) enum CpuWeight {
    /// One matrix, or one per expert.
    Matrices(Vec<PackedMatrix>),
    /// f32 elements in order.
    Elements(Vec<f32>),
}

impl CpuWeight {
    pub(super) fn pack(
        shared: &Shared,
        desc: &WeightDesc,
        source: &dyn RowSource,
    ) -> Result<CpuWeight, DeviceError> {
        let dims = desc.shape.dims();
        if desc.layout == WeightUse::Elements {
            return elements(desc, source).map(CpuWeight::Elements);
        }
        let (experts, n, k) = match *dims {
            [n, k] => (1, n, k),
            [e, n, k] => (e, n, k),
            _ => {
                return Err(DeviceError::Binding {
                    port: desc.name.clone(),
                    problem: format!("has shape {}, a matrix has two axes, experts three", desc.shape),
                });
            }
        };
        let matrices =
            (0..experts).map(|e| pack(shared, desc, source, e * n, n, k)).collect::<Result<_, _>>()?;
        Ok(CpuWeight::Matrices(matrices))
    }

    /// The one matrix of a weight that is not stacked.
    pub(super) fn matrix(&self) -> &PackedMatrix {
        match self {
            CpuWeight::Matrices(m) if m.len() == 1 => &m[0],
            _ => panic!("bindings were checked against the plan"),
        }
    }

    pub(super) fn matrices(&self) -> &[PackedMatrix] {
        match self {
            CpuWeight::Matrices(m) => m,
            CpuWeight::Elements(_) => panic!("bindings were checked against the plan"),
        }
    }

    pub(super) fn elements(&self) -> &[f32] {
        match self {
            CpuWeight::Elements(x) => x,
            CpuWeight::Matrices(_) => panic!("bindings were checked against the plan"),
        }
    }

    /// Whether this is the weight that a port describes.
    pub(super) fn fits(&self, desc: &WeightDesc) -> bool {
        match (self, desc.layout, desc.shape.dims()) {
            (CpuWeight::Elements(x), WeightUse::Elements, _) => x.len() == desc.shape.elements(),
            (CpuWeight::Matrices(m), WeightUse::Matrix, dims) => {
                let (n, k) = (dims[dims.len() - 2], dims[dims.len() - 1]);
                let experts = if dims.len() == 3 { dims[0] } else { 1 };
                m.len() == experts && m.iter().all(|m| m.n() == n && m.k() == k && m.dtype() == desc.dtype)
            }
            _ => false,
        }
    }
}

fn short_row(desc: &WeightDesc) -> DeviceError {
    let problem = format!("a row is missing or is not {} elements of {}", desc.shape.last(), desc.dtype);
    DeviceError::Binding { port: desc.name.clone(), problem }
}

fn pack_error(desc: &WeightDesc, error: PackError) -> DeviceError {
    match error {
        PackError::Memory(e) => memory_error(format!("weight `{}`", desc.name), e.bytes),
        other => DeviceError::Unsupported {
            device: "cpu".into(),
            op: format!("weight `{}` ({} {})", desc.name, desc.dtype, desc.shape),
            reason: other.to_string(),
        },
    }
}

/// Packs the rows `first..first + n` of a source, on all workers.
fn pack(
    shared: &Shared,
    desc: &WeightDesc,
    source: &dyn RowSource,
    first: usize,
    n: usize,
    k: usize,
) -> Result<PackedMatrix, DeviceError> {
    let mut packer = Packer::new(shared.isa, desc.dtype, n, k).map_err(|e| pack_error(desc, e))?;
    let row_bytes = desc.dtype.bytes_for(k).unwrap_or(0);
    let lanes = shared.isa.lanes();
    // Of small matrices every worker has some.
    let share = n.div_ceil(lanes).div_ceil(shared.pool.threads());
    let groups = (PACK_BYTES / (lanes * row_bytes).max(1)).min(share).max(1);
    let failure = Mutex::new(None);
    {
        let chunks: Vec<_> = packer.chunks(groups).map(Mutex::new).collect();
        let job = |worker: &Worker<'_>| {
            let mut rows = vec![0u8; groups * lanes * row_bytes];
            while let Some(range) = worker.claim(chunks.len(), 1) {
                for index in range {
                    let start = index * groups * lanes;
                    let end = (start + groups * lanes).min(n);
                    let mut filled = 0;
                    let fill = source.rows(first + start..first + end, &mut |row, bytes: &[u8]| {
                        let at = (row - first - start) * row_bytes;
                        if bytes.len() == row_bytes {
                            rows[at..at + row_bytes].copy_from_slice(bytes);
                            filled += 1;
                        }
                    });
                    let fill =
                        fill.and_then(|()| if filled == end - start { Ok(()) } else { Err(short_row(desc)) });
                    let packed = fill.and_then(|()| {
                        let mut chunk = chunks[index].lock().unwrap_or_else(|e| e.into_inner());
                        let row = |r: usize| &rows[(r - start) * row_bytes..][..row_bytes];
                        chunk.pack(row).map_err(|e| pack_error(desc, e))
                    });
                    if let Err(error) = packed {
                        failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                    }
                }
            }
        };
        shared.pool.run(&job).map_err(|e| DeviceError::Lost(e.to_string()))?;
    }
    match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(error) => Err(error),
        None => Ok(packer.finish()),
    }
}

fn elements(desc: &WeightDesc, source: &dyn RowSource) -> Result<Vec<f32>, DeviceError> {
    let width = desc.shape.last();
    let mut out = vec![0.0; desc.shape.elements()];
    let mut filled = 0;
    source.rows(0..desc.shape.rows(), &mut |row, bytes| {
        let dst = &mut out[row * width..(row + 1) * width];
        filled += usize::from(desc.dtype != DType::U32 && blocks::decode(desc.dtype, bytes, dst).is_ok());
    })?;
    if filled == desc.shape.rows() { Ok(out) } else { Err(short_row(desc)) }
}
