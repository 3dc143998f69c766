//! Tensors in host memory: what the references compute on.

use std::ops::Range;
use std::sync::Arc;

use crate::blocks::{self, BlockError};
use crate::ops::Operand;
use crate::ops::kv_cache::q8_scales;
use crate::shape::ShapeError;
use crate::{DType, Layout, Shape};

/// Why bytes are not a tensor, or not the tensor that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The extents are no shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The rows do not fill whole blocks.
    #[error("rows of {} do not fill {dtype} blocks of {}", .shape.last(), .dtype.block_len())]
    PartialBlock {
        /// Type of the tensor.
        dtype: DType,
        /// Extents of the tensor.
        shape: Shape,
    },
    /// The data has another length than the shape needs.
    #[error("{dtype} {shape} takes {need} bytes, {given} were given")]
    Length {
        /// Type of the tensor.
        dtype: DType,
        /// Extents of the tensor.
        shape: Shape,
        /// Bytes the shape needs.
        need: usize,
        /// Bytes given.
        given: usize,
    },
    /// The elements are of another type.
    #[error("the tensor is {have}, {want} was asked for")]
    Type {
        /// Type of the tensor.
        have: DType,
        /// Type asked for.
        want: DType,
    },
    /// The view reaches past the tensor, or is one of blocks.
    #[error("a view of {view} does not lie within {dtype} {shape}")]
    View {
        /// Type of the tensor.
        dtype: DType,
        /// Extents of the tensor.
        shape: Shape,
        /// Extents of the view.
        view: Shape,
    },
    /// Blocks that do not decode.
    #[error(transparent)]
    Blocks(#[from] BlockError),
}

/// A contiguous tensor in host memory, little-endian, of any type. Cloning shares the bytes until one copy is written.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    dtype: DType,
    shape: Shape,
    /// Whole words, so that f32 and u32 views are aligned; the last one may be partly unused.
    words: Arc<[u32]>,
    len: usize,
}

impl HostTensor {
    /// A tensor of zero bytes.
    ///
    /// # Errors
    /// Rows that do not fill whole blocks.
    pub fn zeros(dtype: DType, shape: Shape) -> Result<HostTensor, HostError> {
        if !shape.last().is_multiple_of(dtype.block_len()) {
            return Err(HostError::PartialBlock { dtype, shape });
        }
        let len = dtype
            .bytes_for(shape.elements())
            .ok_or_else(|| HostError::Shape(ShapeError::Overflow(shape.dims().to_vec())))?;
        Ok(HostTensor { dtype, shape, words: vec![0; len.div_ceil(4)].into(), len })
    }

    /// A state of zeros, as the references keep it. Of a quantised KV cache each key and each value has blocks of its own,
    /// with scales of the same size as the type's (see [`crate::ops::KvType`]): a row has room for those of any division into
    /// key and value. What decodes rows of blocks does not read it, the ops on caches do.
    ///
    /// # Errors
    /// A shape whose size overflows.
    pub fn state(dtype: DType, shape: Shape) -> Result<HostTensor, HostError> {
        if !dtype.is_quantised() {
            return HostTensor::zeros(dtype, shape);
        }
        let row = q8_scales(shape.last()) * dtype.block_bytes();
        let len = shape.rows().checked_mul(row).filter(|len| *len <= isize::MAX as usize);
        let len = len.ok_or_else(|| HostError::Shape(ShapeError::Overflow(shape.dims().to_vec())))?;
        Ok(HostTensor { dtype, shape, words: vec![0; len.div_ceil(4)].into(), len })
    }

    /// A tensor of the given storage bytes.
    ///
    /// # Errors
    /// Rows that do not fill whole blocks, or another number of bytes than the shape needs.
    pub fn new(dtype: DType, dims: &[usize], bytes: &[u8]) -> Result<HostTensor, HostError> {
        let mut out = HostTensor::zeros(dtype, Shape::new(dims)?)?;
        if bytes.len() != out.len {
            return Err(HostError::Length { dtype, shape: out.shape, need: out.len, given: bytes.len() });
        }
        out.bytes_mut().copy_from_slice(bytes);
        Ok(out)
    }

    /// An F32 tensor.
    ///
    /// # Errors
    /// Another number of elements than the shape has.
    pub fn from_f32(dims: &[usize], values: &[f32]) -> Result<HostTensor, HostError> {
        HostTensor::new(DType::F32, dims, bytemuck::cast_slice(values))
    }

    /// A U32 tensor.
    ///
    /// # Errors
    /// Another number of elements than the shape has.
    pub fn from_u32(dims: &[usize], values: &[u32]) -> Result<HostTensor, HostError> {
        HostTensor::new(DType::U32, dims, bytemuck::cast_slice(values))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Type and extents, as shape rules see them.
    pub fn operand(&self) -> Operand {
        Operand { dtype: self.dtype, shape: self.shape }
    }

    /// The storage.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// The storage, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let words = Arc::make_mut(&mut self.words);
        &mut bytemuck::cast_slice_mut(words)[..self.len]
    }

    /// The elements of an F32 tensor.
    ///
    /// # Errors
    /// Another type.
    pub fn f32s(&self) -> Result<&[f32], HostError> {
        self.is(DType::F32)?;
        Ok(bytemuck::cast_slice(&self.words))
    }

    /// The elements of an F32 tensor, to be written.
    ///
    /// # Errors
    /// Another type.
    pub fn f32s_mut(&mut self) -> Result<&mut [f32], HostError> {
        self.is(DType::F32)?;
        let words = Arc::make_mut(&mut self.words);
        Ok(bytemuck::cast_slice_mut(words))
    }

    /// The elements of a U32 tensor.
    ///
    /// # Errors
    /// Another type.
    pub fn u32s(&self) -> Result<&[u32], HostError> {
        self.is(DType::U32)?;
        Ok(&self.words)
    }

    /// Row `row` (of the last axis, leading axes flattened) decoded to f32 into `out`.
    ///
    /// # Errors
    /// A U32 tensor, no such row, or an `out` of another length than a row.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), HostError> {
        let bytes = self.row_bytes(row)?;
        Ok(blocks::decode(self.dtype, bytes, out)?)
    }

    /// The storage bytes of row `row` (of the last axis, leading axes flattened).
    ///
    /// # Errors
    /// No such row.
    pub fn row_bytes(&self, row: usize) -> Result<&[u8], HostError> {
        Ok(&self.bytes()[self.row_range(row)?])
    }

    /// The storage bytes of row `row`, to be written.
    ///
    /// # Errors
    /// No such row.
    pub fn row_bytes_mut(&mut self, row: usize) -> Result<&mut [u8], HostError> {
        let range = self.row_range(row)?;
        Ok(&mut self.bytes_mut()[range])
    }

    fn row_range(&self, row: usize) -> Result<Range<usize>, HostError> {
        let width = self.len.checked_div(self.shape.rows()).unwrap_or(0);
        let range = row.checked_mul(width).and_then(|start| Some(start..start.checked_add(width)?));
        let range = range.filter(|range| row < self.shape.rows() && range.end <= self.len);
        range.ok_or(HostError::View { dtype: self.dtype, shape: self.shape, view: self.shape })
    }

    /// All elements decoded to f32.
    ///
    /// # Errors
    /// A U32 tensor.
    pub fn to_f32(&self) -> Result<Vec<f32>, HostError> {
        let mut out = vec![0.0; self.shape.elements()];
        blocks::decode(self.dtype, self.bytes(), &mut out)?;
        Ok(out)
    }

    /// A contiguous copy of a view of this tensor; free of copying when the view is the whole tensor in order.
    ///
    /// # Errors
    /// A view that reaches past the tensor, or a strided view of blocks.
    pub fn view(&self, layout: &Layout) -> Result<HostTensor, HostError> {
        let refused = || HostError::View { dtype: self.dtype, shape: self.shape, view: layout.shape };
        let count = layout.shape.elements();
        if layout.offset == 0 && layout.is_contiguous() && count == self.shape.elements() {
            return Ok(HostTensor { shape: layout.shape, ..self.clone() });
        }
        let size = self.dtype.block_bytes();
        if self.dtype.is_quantised() {
            return Err(refused());
        }
        let mut out = HostTensor::zeros(self.dtype, layout.shape)?;
        if count == 0 {
            return Ok(out);
        }
        let (dims, strides) = (layout.shape.dims(), layout.strides());
        let span = dims.iter().zip(strides).map(|(d, s)| (d - 1) * s).sum::<usize>();
        if layout.offset + span >= self.shape.elements() {
            return Err(refused());
        }
        let source = self.bytes();
        for (i, place) in out.bytes_mut().chunks_exact_mut(size).enumerate() {
            let (mut rest, mut at) = (i, layout.offset);
            for (d, s) in dims.iter().zip(strides).rev() {
                at += rest % d * s;
                rest /= d;
            }
            place.copy_from_slice(&source[at * size..][..size]);
        }
        Ok(out)
    }

    fn is(&self, want: DType) -> Result<(), HostError> {
        if self.dtype == want { Ok(()) } else { Err(HostError::Type { have: self.dtype, want }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_wrong_lengths_types_and_blocks() {
        assert!(matches!(HostTensor::from_f32(&[2, 2], &[0.0; 3]), Err(HostError::Length { need: 16, .. })));
        let t = HostTensor::from_u32(&[2], &[1, 2]).unwrap();
        assert!(matches!(t.f32s(), Err(HostError::Type { .. })));
        assert!(matches!(t.to_f32(), Err(HostError::Blocks(_))));
        // 64 elements fill two blocks, but no row does.
        assert!(matches!(
            HostTensor::new(DType::Q8_0, &[4, 16], &[0; 68]),
            Err(HostError::PartialBlock { .. })
        ));
    }

    #[test]
    fn views_gather_strided_and_repeated_elements() {
        let t = HostTensor::from_f32(&[2, 3], &[0., 1., 2., 3., 4., 5.]).unwrap();
        let columns = Layout::contiguous(t.shape()).slice(1, 1, 2).unwrap();
        assert_eq!(t.view(&columns).unwrap().f32s().unwrap(), [1., 2., 4., 5.]);
        let row = HostTensor::from_f32(&[2], &[7., 8.]).unwrap();
        let wide = Layout::contiguous(row.shape()).broadcast_row(Shape::new(&[3, 2]).unwrap()).unwrap();
        assert_eq!(row.view(&wide).unwrap().f32s().unwrap(), [7., 8., 7., 8., 7., 8.]);
        let beyond = Layout::contiguous(Shape::new(&[7]).unwrap());
        assert!(t.view(&beyond).is_err());
    }

    #[test]
    fn a_clone_keeps_its_values_when_the_other_is_written() {
        let mut a = HostTensor::from_f32(&[1], &[1.0]).unwrap();
        let b = a.clone();
        a.f32s_mut().unwrap()[0] = 2.0;
        assert_eq!((a.f32s().unwrap()[0], b.f32s().unwrap()[0]), (2.0, 1.0));
    }

    #[test]
    fn odd_f16_lengths_keep_their_last_element() {
        let bytes: Vec<u8> =
            [1.0f32, 2.0, 3.0].iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
        let t = HostTensor::new(DType::F16, &[1, 3], &bytes).unwrap();
        assert_eq!((t.to_f32().unwrap(), t.bytes().len()), (vec![1.0, 2.0, 3.0], 6));
        let mut row = [0.0; 3];
        t.decode_row(0, &mut row).unwrap();
        assert_eq!(row, [1.0, 2.0, 3.0]);
        assert!(t.decode_row(1, &mut row).is_err());
    }
}
