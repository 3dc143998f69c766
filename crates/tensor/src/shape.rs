//! Shapes and strided layouts.

use std::fmt;

/// Largest number of axes a tensor may have.
pub const MAX_RANK: usize = 4;

/// The extents of a tensor, outermost first, at most [`MAX_RANK`] axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: usize,
}

/// Why a list of extents is not a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Too many axes.
    #[error("{0} axes given, at most {MAX_RANK} are supported")]
    Rank(usize),
    /// The number of elements does not fit in memory.
    #[error("the extents {0:?} multiply to more than this machine can address")]
    Overflow(Vec<usize>),
}

impl Shape {
    /// A shape with the given extents (zero is allowed: the tensor is empty).
    ///
    /// # Errors
    /// More than [`MAX_RANK`] axes, or a product that overflows.
    pub fn new(dims: &[usize]) -> Result<Shape, ShapeError> {
        if dims.len() > MAX_RANK {
            return Err(ShapeError::Rank(dims.len()));
        }
        let fits = dims.iter().filter(|d| **d != 0).try_fold(1usize, |n, d| n.checked_mul(*d));
        if fits.is_none_or(|n| n > isize::MAX as usize / 8) {
            return Err(ShapeError::Overflow(dims.to_vec()));
        }
        let mut all = [1; MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Ok(Shape { dims: all, rank: dims.len() })
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The last extent, the length of a row; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// How many rows of [`Shape::last`] elements there are.
    pub fn rows(&self) -> usize {
        self.dims[..self.rank.saturating_sub(1)].iter().product()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where the elements of a view lie in its base: element `i` is at `offset + sum(i[a] * strides[a])`, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Extents of the view.
    pub shape: Shape,
    /// First element.
    pub offset: usize,
    strides: [usize; MAX_RANK],
}

impl Layout {
    /// Row-major, no gaps.
    pub fn contiguous(shape: Shape) -> Layout {
        let mut strides = [0; MAX_RANK];
        let mut step = 1;
        for axis in (0..shape.rank).rev() {
            strides[axis] = step;
            step *= shape.dims[axis];
        }
        Layout { shape, offset: 0, strides }
    }

    /// Strides in elements, outermost first. A broadcast axis has stride 0.
    pub fn strides(&self) -> &[usize] {
        &self.strides[..self.shape.rank]
    }

    /// True when the view is row-major without gaps.
    pub fn is_contiguous(&self) -> bool {
        let dense = Layout::contiguous(self.shape);
        (0..self.shape.rank).all(|a| self.shape.dims[a] == 1 || self.strides[a] == dense.strides[a])
    }

    /// The elements `start..start + len` of one axis; `None` when out of range.
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Option<Layout> {
        let extent = *self.shape.dims().get(axis)?;
        if start.checked_add(len)? > extent {
            return None;
        }
        let mut out = *self;
        out.offset += start * self.strides[axis];
        out.shape.dims[axis] = len;
        Some(out)
    }

    /// The same elements under other extents. Axes that are split or joined must be dense among themselves, which
    /// covers splitting the last axis of a row-strided view into heads; anything else is `None`.
    pub fn reshape(&self, shape: Shape) -> Option<Layout> {
        if shape.elements() != self.shape.elements() {
            return None;
        }
        if self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape) });
        }
        // Keep equal leading axes; what remains must be dense on its own.
        let keep = self.shape.dims().iter().zip(shape.dims()).take_while(|(a, b)| a == b).count();
        let tail = |s: &Shape| Shape::new(&s.dims()[keep..]).ok();
        let (old, new) = (tail(&self.shape)?, tail(&shape)?);
        let dense = Layout::contiguous(old);
        if (0..old.rank).any(|a| old.dims[a] != 1 && self.strides[keep + a] != dense.strides[a]) {
            return None;
        }
        let mut out = Layout { shape, offset: self.offset, strides: self.strides };
        out.strides[keep..shape.rank].copy_from_slice(Layout::contiguous(new).strides());
        Some(out)
    }

    /// Repeats a row of length `shape.last()` over all leading axes with stride 0; `None` when the lengths differ.
    pub fn broadcast_row(&self, shape: Shape) -> Option<Layout> {
        if self.shape.elements() != shape.last() || !self.is_contiguous() || shape.rank == 0 {
            return None;
        }
        let mut strides = [0; MAX_RANK];
        strides[shape.rank - 1] = 1;
        Some(Layout { shape, offset: self.offset, strides })
    }

    /// The distance between consecutive rows (of the last axis) when one number describes it: all leading axes
    /// collapse to one stride and the last axis is dense. This is what kernels accept.
    pub fn row_stride(&self) -> Option<usize> {
        let rank = self.shape.rank;
        if rank == 0 {
            return Some(1);
        }
        if self.shape.last() > 1 && self.strides[rank - 1] != 1 {
            return None;
        }
        let mut stride = None;
        let mut step = 0;
        for axis in (0..rank - 1).rev() {
            if self.shape.dims[axis] == 1 {
                continue;
            }
            match stride {
                None => {
                    stride = Some(self.strides[axis]);
                    step = self.strides[axis] * self.shape.dims[axis];
                }
                Some(_) if self.strides[axis] == step => step *= self.shape.dims[axis],
                Some(_) => return None,
            }
        }
        Some(stride.unwrap_or(self.shape.last()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(d: &[usize]) -> Shape {
        Shape::new(d).unwrap()
    }

    #[test]
    fn refuses_too_many_axes_and_overflow() {
        assert_eq!(Shape::new(&[1; 5]), Err(ShapeError::Rank(5)));
        assert!(matches!(Shape::new(&[usize::MAX, 2]), Err(ShapeError::Overflow(_))));
        assert_eq!(shape(&[0, 7]).elements(), 0);
    }

    #[test]
    fn slices_and_splits_rows() {
        let rows = Layout::contiguous(shape(&[5, 12]));
        let view = rows.slice(1, 4, 4).unwrap();
        assert_eq!((view.offset, view.row_stride()), (4, Some(12)));
        assert!(!view.is_contiguous());
        let heads = view.reshape(shape(&[5, 2, 2])).unwrap();
        assert_eq!(heads.strides(), &[12, 2, 1]);
        assert_eq!(heads.row_stride(), None);
        assert!(view.reshape(shape(&[20])).is_none());
        assert!(rows.slice(1, 8, 5).is_none());
    }

    #[test]
    fn broadcasts_a_row() {
        let bias = Layout::contiguous(shape(&[12]));
        let view = bias.broadcast_row(shape(&[5, 12])).unwrap();
        assert_eq!(view.row_stride(), Some(0));
        assert!(bias.broadcast_row(shape(&[5, 11])).is_none());
    }
}
