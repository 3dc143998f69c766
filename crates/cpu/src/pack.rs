//! Weight matrices in the layout that the kernels read.
//!
//! A matrix W [n, k] is cut into *lane groups* of [`CpuIsa::lanes`] rows. A group is one run of bytes: the packed blocks
//! (see [`layout`]) of its rows, in the order of the inner dimension. Rows therefore lie in vector lanes, and each row's
//! sum walks the inner dimension in order, whatever else is computed beside it. The one layout serves the integer
//! products, the f32 products and the gather of single rows, and holds exactly the values of the stored blocks.

pub(crate) mod books;
pub(crate) mod layout;
mod rows;
#[cfg(test)]
mod tests;

use crate::isa::{CpuIsa, Isa, Kernel, VIRTUAL_LANES};
use crate::memory::{HugeBuf, MemoryError, Slabs};
use std::ops::Range;
use tensor::DType;

/// Why a matrix could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The type holds no real numbers.
    #[error("a matrix of {0} cannot be multiplied: the type holds integers")]
    NotReal(DType),
    /// Rows would end inside a block.
    #[error("rows of {k} elements do not fill whole blocks of {} {dtype} elements", .dtype.block_len())]
    PartialBlock {
        /// The format.
        dtype: DType,
        /// Row length in elements.
        k: usize,
    },
    /// The size overflows.
    #[error("a packed {n} x {k} matrix of {dtype} does not fit the address space")]
    TooLarge {
        /// The format.
        dtype: DType,
        /// Rows.
        n: usize,
        /// Row length in elements.
        k: usize,
    },
    /// The source of a row has the wrong length.
    #[error("row {row} has {got} bytes where {want} were expected")]
    RowBytes {
        /// The row of the packed matrix.
        row: usize,
        /// Bytes the source gave.
        got: usize,
        /// Bytes of a row of the format.
        want: usize,
    },
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The dimensions of a packed matrix and the sizes that follow from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dims {
    isa: CpuIsa,
    dtype: DType,
    n: usize,
    k: usize,
    /// Bytes of a row in its stored form.
    row_bytes: usize,
    /// Bytes of a packed block.
    block_bytes: usize,
    /// Bytes of a lane group.
    group_bytes: usize,
}

impl Dims {
    fn new(isa: CpuIsa, dtype: DType, n: usize, k: usize) -> Result<Dims, PackError> {
        if dtype == DType::U32 {
            return Err(PackError::NotReal(dtype));
        }
        if !k.is_multiple_of(dtype.block_len()) {
            return Err(PackError::PartialBlock { dtype, k });
        }
        let block_bytes = layout::block_bytes(dtype, isa.lanes());
        let sizes = || {
            let row = dtype.bytes_for(k)?;
            let group = (k / dtype.block_len()).checked_mul(block_bytes)?;
            let all = group.checked_mul(n.div_ceil(isa.lanes()))?;
            (all <= isize::MAX as usize).then_some((row, group))
        };
        let (row_bytes, group_bytes) = sizes().ok_or(PackError::TooLarge { dtype, n, k })?;
        Ok(Dims { isa, dtype, n, k, row_bytes, block_bytes, group_bytes })
    }

    fn groups(&self) -> usize {
        self.n.div_ceil(self.isa.lanes())
    }
}

/// Where all packed matrices lie.
static SLABS: Slabs = Slabs::new();

/// A packed weight matrix W [n, k] of one format.
#[derive(Debug)]
pub struct PackedMatrix {
    dims: Dims,
    data: HugeBuf,
}

impl PackedMatrix {
    /// Bytes that a packed matrix takes.
    ///
    /// # Errors
    /// For dimensions or types that cannot be packed.
    pub fn bytes(isa: CpuIsa, dtype: DType, n: usize, k: usize) -> Result<usize, PackError> {
        let dims = Dims::new(isa, dtype, n, k)?;
        Ok(dims.groups() * dims.group_bytes)
    }

    /// Packs a matrix of which `row` gives the stored bytes of each row.
    ///
    /// # Errors
    /// As [`Packer::new`] and [`PackChunk::pack`].
    pub fn pack<'a>(
        isa: CpuIsa,
        dtype: DType,
        n: usize,
        k: usize,
        row: impl Fn(usize) -> &'a [u8],
    ) -> Result<PackedMatrix, PackError> {
        let mut packer = Packer::new(isa, dtype, n, k)?;
        for mut chunk in packer.chunks(usize::MAX) {
            chunk.pack(&row)?;
        }
        Ok(packer.finish())
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> CpuIsa {
        self.dims.isa
    }

    /// The format of the weights.
    pub fn dtype(&self) -> DType {
        self.dims.dtype
    }

    /// Rows, the outputs of a product.
    pub fn n(&self) -> usize {
        self.dims.n
    }

    /// Row length in elements, the inputs of a product.
    pub fn k(&self) -> usize {
        self.dims.k
    }

    /// Rows of a lane group; the last group may be partly filled.
    pub fn lanes(&self) -> usize {
        self.dims.isa.lanes()
    }

    /// Lane groups, the units in which a product is split over threads.
    pub fn groups(&self) -> usize {
        self.dims.groups()
    }

    /// Bytes of one lane group.
    pub fn group_bytes(&self) -> usize {
        self.dims.group_bytes
    }

    /// The bytes of one lane group.
    pub(crate) fn group(&self, group: usize) -> &[u8] {
        &self.data.as_slice()[group * self.dims.group_bytes..][..self.dims.group_bytes]
    }

    /// The bytes of a lane group and of all behind it; nothing where there is no such group.
    pub(crate) fn group_onward(&self, group: usize) -> &[u8] {
        self.data.as_slice().get(group * self.dims.group_bytes..).unwrap_or(&[])
    }

    /// Bytes of a packed block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.dims.block_bytes
    }
}

/// A matrix that is being packed.
///
/// [`Packer::chunks`] hands out disjoint parts that several threads may fill at once; each row's bytes may come from
/// wherever the caller finds them, so that several tensors can be packed as one matrix and rows can be permuted. Rows
/// that are never packed are zeros.
#[derive(Debug)]
pub struct Packer {
    dims: Dims,
    data: HugeBuf,
}

impl Packer {
    /// Room for a matrix W [n, k].
    ///
    /// # Errors
    /// [`PackError`] when the type or the dimensions cannot be packed, or there is no memory.
    pub fn new(isa: CpuIsa, dtype: DType, n: usize, k: usize) -> Result<Packer, PackError> {
        let dims = Dims::new(isa, dtype, n, k)?;
        Ok(Packer { dims, data: SLABS.zeroed(dims.groups() * dims.group_bytes)? })
    }

    /// The matrix in parts of at most `groups` lane groups, each of which may be filled by its own thread.
    pub fn chunks(&mut self, groups: usize) -> impl Iterator<Item = PackChunk<'_>> {
        let dims = self.dims;
        let groups = groups.clamp(1, dims.groups().max(1));
        // A matrix without elements has no bytes to chunk by; any positive size gives no chunks then.
        let parts = self.data.as_mut_slice().chunks_mut((groups * dims.group_bytes).max(1));
        parts.enumerate().map(move |(i, out)| PackChunk { dims, first: i * groups, out })
    }

    /// The packed matrix.
    pub fn finish(self) -> PackedMatrix {
        PackedMatrix { dims: self.dims, data: self.data }
    }
}

/// Some lane groups of a matrix that is being packed.
#[derive(Debug)]
pub struct PackChunk<'a> {
    dims: Dims,
    /// The first lane group.
    first: usize,
    out: &'a mut [u8],
}

impl PackChunk<'_> {
    /// The rows of the matrix that lie in this part.
    pub fn rows(&self) -> Range<usize> {
        let lanes = self.dims.isa.lanes();
        let groups = self.out.len() / self.dims.group_bytes;
        self.first * lanes..((self.first + groups) * lanes).min(self.dims.n)
    }

    /// Packs the rows of this part: `row` gives the stored bytes of each.
    ///
    /// # Errors
    /// [`PackError::RowBytes`] when a row has the wrong length.
    pub fn pack<'a>(&mut self, row: impl Fn(usize) -> &'a [u8]) -> Result<(), PackError> {
        let Dims { isa, dtype, n, row_bytes, group_bytes, .. } = self.dims;
        for (group, out) in (self.first..).zip(self.out.chunks_exact_mut(group_bytes)) {
            let first = group * isa.lanes();
            let mut rows: [&[u8]; VIRTUAL_LANES] = [&[]; VIRTUAL_LANES];
            let rows = &mut rows[..isa.lanes().min(n - first)];
            for (index, src) in (first..).zip(rows.iter_mut()) {
                *src = row(index);
                if src.len() != row_bytes {
                    return Err(PackError::RowBytes { row: index, got: src.len(), want: row_bytes });
                }
            }
            isa.run(PackGroup { dtype, rows, out });
        }
        Ok(())
    }
}

/// Packs the rows of one lane group, of which the last one of a matrix may have fewer than lanes.
struct PackGroup<'a> {
    dtype: DType,
    rows: &'a [&'a [u8]],
    out: &'a mut [u8],
}

impl Kernel for PackGroup<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, _: S) {
        match S::LANES {
            8 => self.pack::<8>(),
            VIRTUAL_LANES => self.pack::<VIRTUAL_LANES>(),
            lanes => unreachable!("vectors of {lanes} lanes"),
        }
    }
}

impl PackGroup<'_> {
    #[inline(always)]
    fn pack<const LANES: usize>(self) {
        match self.rows.try_into() {
            Ok(rows) => layout::pack_rows::<LANES>(self.dtype, LANES, 0, rows, self.out),
            Err(_) => self.pack_each(LANES),
        }
    }

    /// Row by row.
    #[inline(never)]
    fn pack_each(self, lanes: usize) {
        for (lane, row) in self.rows.iter().enumerate() {
            layout::pack_rows(self.dtype, lanes, lane, &[*row], self.out);
        }
    }
}
