//! Weights on the device.

use std::ops::Range;
use std::panic::resume_unwind;
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
/// Words packed at a time, by all threads together.
const BATCH: usize = 1 << 22;
/// Words that are worth a thread: packing them takes several times as long as starting one.
const SHARE: usize = 1 << 16;
/// Most threads that pack: a disk and the bus are behind them.
const THREADS: usize = 16;

impl GpuWeight {
    pub(crate) fn pack(
        gpu: &Arc<Gpu>,
        slabs: &SharedSlabs,
        desc: &WeightDesc,
        source: &dyn RowSource,
    ) -> Result<GpuWeight, DeviceError> {
        gpu.check()?;
        let packed = match desc.layout {
            WeightUse::Elements => elements(gpu, slabs, desc, source).map(GpuWeight::Elements),
            WeightUse::Matrix => matrix(gpu, slabs, desc, source).map(GpuWeight::Matrix),
        };
        packed.map_err(|error| match error {
            // A device that has no memory for what is written to it is lost.
            DeviceError::Lost(reason) if reason.starts_with("Out of memory") => DeviceError::Memory {
                device: "gpu".into(),
                what: format!("weight `{}` and those before it", desc.name),
                bytes: desc.dtype.bytes_for(desc.shape.elements()).unwrap_or(0) as u64,
            },
            other => other,
        })
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
    slabs.write(gpu, &region, 0, bytemuck::cast_slice(&values))?;
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
    let batch = (BATCH / row_words.iter().sum::<usize>().max(1)).max(1);
    let mut at = 0;
    while at < rows {
        let n = batch.min(rows - at);
        let mut packed = row_words.map(|words| vec![0u32; words * n]);
        pack_rows(
            desc,
            source,
            first + at..first + at + n,
            row_words,
            packed.each_mut().map(|p| &mut p[..]),
        )?;
        for ((words, start), width) in packed.iter().zip(starts).zip(row_words) {
            if !words.is_empty() {
                slabs.write(gpu, &region, start + at * width, words)?;
            }
        }
        at += n;
    }
    gpu.check()?;
    let planes = starts.map(|start| region.at + start as u32);
    Ok(Chunk { first, rows, region, planes })
}

/// Packs rows into zeroed planes, with as many threads as they are worth. Of several errors, that of the first rows counts.
fn pack_rows(
    desc: &WeightDesc,
    source: &dyn RowSource,
    rows: Range<usize>,
    row_words: [usize; 3],
    planes: [&mut [u32]; 3],
) -> Result<(), DeviceError> {
    let words = rows.len() * row_words.iter().sum::<usize>();
    // In a browser there is one.
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (words / SHARE).clamp(1, available.min(THREADS));
    if threads == 1 {
        return pack_share(desc, source, rows, row_words, planes);
    }
    let share = rows.len().div_ceil(threads);
    std::thread::scope(|scope| {
        let (mut workers, mut left) = (vec![], planes);
        for first in rows.clone().step_by(share) {
            let own = first..rows.end.min(first + share);
            let mut planes = [&mut [][..], &mut [], &mut []];
            for ((plane, rest), words) in planes.iter_mut().zip(&mut left).zip(row_words) {
                (*plane, *rest) = std::mem::take(rest).split_at_mut(own.len() * words);
            }
            workers.push(scope.spawn(move || pack_share(desc, source, own, row_words, planes)));
        }
        let done = workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Packs the rows of one thread.
fn pack_share(
    desc: &WeightDesc,
    source: &dyn RowSource,
    rows: Range<usize>,
    row_words: [usize; 3],
    [codes, high, scales]: [&mut [u32]; 3],
) -> Result<(), DeviceError> {
    let row_bytes = desc.dtype.bytes_for(desc.shape.last()).unwrap_or(0);
    let mut filled = 0;
    source.rows(rows.clone(), &mut |row, bytes| {
        if bytes.len() != row_bytes || !rows.contains(&row) {
            return;
        }
        let r = row - rows.start;
        let part = |words: usize| r * words..(r + 1) * words;
        let planes =
            [&mut codes[part(row_words[0])], &mut high[part(row_words[1])], &mut scales[part(row_words[2])]];
        pack_row(desc.dtype, bytes, planes);
        filled += 1;
    })?;
    if filled == rows.len() { Ok(()) } else { Err(short_row(desc)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tensor::Shape;

    /// Rows of bytes that their index makes; those from `bad` on are too short. Counts how often it is asked.
    struct Made {
        bad: usize,
        calls: AtomicUsize,
    }

    impl RowSource for Made {
        fn rows(&self, rows: Range<usize>, sink: &mut dyn FnMut(usize, &[u8])) -> Result<(), DeviceError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            for row in rows {
                let bytes: Vec<u8> = (0..2 * 34).map(|i| (31 * row + 7 * i) as u8).collect();
                sink(row, &bytes[..if row < self.bad { bytes.len() } else { 3 }]);
            }
            Ok(())
        }
    }

    type Pack<'a> = &'a dyn Fn([&mut [u32]; 3]) -> Result<(), DeviceError>;

    #[test]
    fn several_threads_pack_what_one_does() {
        let n = 8 * SHARE / 17 + 5;
        let shape = Shape::new(&[n + 3, 64]).unwrap();
        let desc = WeightDesc { name: "w".into(), dtype: DType::Q8_0, shape, layout: WeightUse::Matrix };
        let row_words = planes(DType::Q8_0).unwrap().row_words(64);
        let packed = |source: &Made, pack: Pack| {
            let mut packed = row_words.map(|words| vec![0u32; words * n]);
            let done = pack(packed.each_mut().map(|p| &mut p[..]));
            (done, packed, source.calls.load(Ordering::Relaxed))
        };
        let made = |bad| Made { bad, calls: AtomicUsize::new(0) };
        let source = made(usize::MAX);
        let one = packed(&source, &|planes| pack_share(&desc, &source, 3..n + 3, row_words, planes));
        let source = made(usize::MAX);
        let all = packed(&source, &|planes| pack_rows(&desc, &source, 3..n + 3, row_words, planes));
        assert!(one.0 == Ok(()) && one.1[0].iter().any(|w| *w != 0) && (one.0, one.1) == (all.0, all.1));
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!((one.2, all.2), (1, available.min(8)));
        let source = made(n - 1);
        let short = packed(&source, &|planes| pack_rows(&desc, &source, 3..n + 3, row_words, planes));
        assert_eq!(short.0, Err(short_row(&desc)));
    }
}
