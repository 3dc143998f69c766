//! Weights on the device.

use std::sync::Arc;

use graph::backend::{DeviceError, RowSource, WeightDesc, WeightUse};
use tensor::{DType, blocks};

use crate::device::Gpu;
use crate::pack::{Planes, pack_row, planes};
use crate::slab::{Region, SharedSlabs};

/// A weight as kernels read it.
pub(crate) enum GpuWeight {
    /// A matrix, or those of all experts one after another.
    Matrix(PackedMatrix),
    /// f32 elements in order.
    Elements(Elements),
}

/// Rows in planes, in chunks that can each be bound whole.
pub(crate) struct PackedMatrix {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) dtype: DType,
    /// Rows, all experts' together.
    pub(crate) rows: usize,
    pub(crate) k: usize,
    pub(crate) chunks: Vec<Chunk>,
}

/// Some rows of a matrix.
pub(crate) struct Chunk {
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) region: Region,
    /// First word of each plane in the buffer: codes, high bits, scales.
    pub(crate) planes: [u32; 3],
}

/// A row of f32.
pub(crate) struct Elements {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) region: Region,
    pub(crate) values: Vec<f32>,
}

/// Words that planes are aligned to.
const ALIGN: usize = 64;
/// Words packed at a time.
const BATCH: usize = 1 << 20;

impl GpuWeight {
    pub(crate) fn pack(
        gpu: &Arc<Gpu>,
        slabs: &SharedSlabs,
        desc: &WeightDesc,
        source: &dyn RowSource,
    ) -> Result<GpuWeight, DeviceError> {
        gpu.check()?;
        match desc.layout {
            WeightUse::Elements => elements(gpu, slabs, desc, source).map(GpuWeight::Elements),
            WeightUse::Matrix => matrix(gpu, slabs, desc, source).map(GpuWeight::Matrix),
        }
    }

    /// The matrix that bindings were checked to be.
    pub(crate) fn matrix(&self) -> &PackedMatrix {
        match self {
            GpuWeight::Matrix(m) => m,
            GpuWeight::Elements(_) => unreachable!("bindings were checked against the plan"),
        }
    }

    /// The elements that bindings were checked to be.
    pub(crate) fn elements(&self) -> &Elements {
        match self {
            GpuWeight::Elements(e) => e,
            GpuWeight::Matrix(_) => unreachable!("bindings were checked against the plan"),
        }
    }

    /// Whether this is the weight that a port describes.
    pub(crate) fn fits(&self, gpu: &Arc<Gpu>, desc: &WeightDesc) -> bool {
        match (self, desc.layout) {
            (GpuWeight::Elements(e), WeightUse::Elements) => {
                Arc::ptr_eq(&e.gpu, gpu) && e.values.len() == desc.shape.elements()
            }
            (GpuWeight::Matrix(m), WeightUse::Matrix) => {
                Arc::ptr_eq(&m.gpu, gpu)
                    && (m.dtype, m.rows, m.k) == (desc.dtype, desc.shape.rows(), desc.shape.last())
            }
            _ => false,
        }
    }
}

fn short_row(desc: &WeightDesc) -> DeviceError {
    let problem = format!("a row is missing or is not {} elements of {}", desc.shape.last(), desc.dtype);
    DeviceError::Binding { port: desc.name.clone(), problem }
}

fn elements(
    gpu: &Arc<Gpu>,
    slabs: &SharedSlabs,
    desc: &WeightDesc,
    source: &dyn RowSource,
) -> Result<Elements, DeviceError> {
    let width = desc.shape.last();
    let mut values = vec![0.0; desc.shape.elements()];
    let mut filled = 0;
    source.rows(0..desc.shape.rows(), &mut |row, bytes| {
        let to = &mut values[row * width..(row + 1) * width];
        filled += usize::from(desc.dtype != DType::U32 && blocks::decode(desc.dtype, bytes, to).is_ok());
    })?;
    if filled != desc.shape.rows() {
        return Err(short_row(desc));
    }
    let region = slabs.allocate(gpu, &desc.name, values.len())?;
    slabs.write(gpu, &region, 0, bytemuck::cast_slice(&values));
    Ok(Elements { gpu: gpu.clone(), region, values })
}

/// Most rows whose planes together fit a binding.
fn rows_per_chunk(gpu: &Gpu, planes: &Planes, k: usize) -> usize {
    let words: usize = planes.row_words(k).iter().sum();
    let limit = (gpu.binding_limit() / 4) as usize - 3 * ALIGN;
    limit.checked_div(words).unwrap_or(usize::MAX)
}

fn matrix(
    gpu: &Arc<Gpu>,
    slabs: &SharedSlabs,
    desc: &WeightDesc,
    source: &dyn RowSource,
) -> Result<PackedMatrix, DeviceError> {
    let unsupported = |reason: String| DeviceError::Unsupported {
        device: "gpu".into(),
        op: format!("weight `{}` ({} {})", desc.name, desc.dtype, desc.shape),
        reason,
    };
    if !(2..=3).contains(&desc.shape.rank()) {
        return Err(unsupported("a matrix has two axes, experts three".into()));
    }
    let Some(planes) = planes(desc.dtype) else {
        return Err(unsupported(format!("weights of {} have no kernel on this device", desc.dtype)));
    };
    let (rows, k) = (desc.shape.rows(), desc.shape.last());
    let per_chunk = rows_per_chunk(gpu, &planes, k);
    if per_chunk == 0 {
        return Err(unsupported(format!(
            "one row is larger than the {} bytes a kernel can see",
            gpu.binding_limit()
        )));
    }
    let chunks = rows.div_ceil(per_chunk).max(1);
    // Even chunks: one of a few rows would keep a dispatch mostly idle.
    let per_chunk = rows.div_ceil(chunks);
    let chunks = (0..chunks)
        .map(|i| (i * per_chunk, per_chunk.min(rows - (i * per_chunk).min(rows))))
        .collect::<Vec<_>>();
    let mut out = vec![];
    for (first, rows) in chunks {
        out.push(chunk(gpu, slabs, desc, source, &planes, first, rows)?);
    }
    Ok(PackedMatrix { gpu: gpu.clone(), dtype: desc.dtype, rows, k, chunks: out })
}

fn chunk(
    gpu: &Gpu,
    slabs: &SharedSlabs,
    desc: &WeightDesc,
    source: &dyn RowSource,
    planes: &Planes,
    first: usize,
    rows: usize,
) -> Result<Chunk, DeviceError> {
    let k = desc.shape.last();
    let row_words = planes.row_words(k);
    let sizes = row_words.map(|words| (words * rows).next_multiple_of(ALIGN));
    let region = slabs.allocate(gpu, &desc.name, sizes.iter().sum())?;
    let starts = [0, sizes[0], sizes[0] + sizes[1]];
    let row_bytes = desc.dtype.bytes_for(k).unwrap_or(0);
    let batch = (BATCH / row_words.iter().sum::<usize>().max(1)).max(1);
    let mut at = 0;
    while at < rows {
        let n = batch.min(rows - at);
        let [mut codes, mut high, mut scales] = row_words.map(|words| vec![0u32; words * n]);
        let mut filled = 0;
        source.rows(first + at..first + at + n, &mut |row, bytes| {
            if bytes.len() != row_bytes {
                return;
            }
            let r = row - first - at;
            let part = |words: usize| r * words..(r + 1) * words;
            let planes = [
                &mut codes[part(row_words[0])],
                &mut high[part(row_words[1])],
                &mut scales[part(row_words[2])],
            ];
            pack_row(desc.dtype, bytes, planes);
            filled += 1;
        })?;
        if filled != n {
            return Err(short_row(desc));
        }
        for ((words, start), width) in [codes, high, scales].iter().zip(starts).zip(row_words) {
            if !words.is_empty() {
                slabs.write(gpu, &region, start + at * width, words);
            }
        }
        at += n;
    }
    gpu.check()?;
    let planes = starts.map(|start| region.at + start as u32);
    Ok(Chunk { first, rows, region, planes })
}
