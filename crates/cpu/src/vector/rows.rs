//! Rows of f32 inside a larger buffer.

use std::marker::PhantomData;
use std::ops::Range;

/// `rows` rows of `dim` values each, `stride` values apart.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    start: *const f32,
    rows: usize,
    dim: usize,
    stride: usize,
    borrow: PhantomData<&'a [f32]>,
}

/// [`Rows`] that may be written.
#[derive(Debug)]
pub struct RowsMut<'a> {
    start: *mut f32,
    rows: usize,
    dim: usize,
    stride: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

/// Where an operand of a row kernel comes from.
#[derive(Debug, Clone, Copy)]
pub enum Src<'a> {
    /// A row for each row of the output.
    Rows(Rows<'a>),
    /// One row that every row of the output uses.
    Row(&'a [f32]),
}

// SAFETY: a `Rows` only reads what it borrows, as a `&[f32]` does.
unsafe impl Send for Rows<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Rows<'_> {}
// SAFETY: a `RowsMut` has the values it covers to itself, as a `&mut [f32]` does.
unsafe impl Send for RowsMut<'_> {}
// SAFETY: nothing can be written through a shared `RowsMut`, except under the contract of `RowsMut::alias`.
unsafe impl Sync for RowsMut<'_> {}

/// Panics unless `rows` rows fit `len` values.
fn check(len: usize, rows: usize, dim: usize, stride: usize) {
    assert!(dim <= stride || rows <= 1, "rows of {dim} values overlap at a stride of {stride}");
    let needed = if rows == 0 { 0 } else { (rows - 1) * stride + dim };
    assert!(needed <= len, "{rows} rows of {dim} values at a stride of {stride} do not fit {len} values");
}

impl<'a> Rows<'a> {
    /// Rows of `dim` values that lie one after another and fill `data`.
    ///
    /// # Panics
    /// When `data` is not whole rows.
    #[must_use]
    pub fn new(data: &'a [f32], dim: usize) -> Self {
        assert!(
            dim > 0 && data.len().is_multiple_of(dim),
            "{} values are not whole rows of {dim}",
            data.len()
        );
        Self::strided(data, data.len() / dim, dim, dim)
    }

    /// Rows of `dim` values, `stride` apart, the first at the start of `data`.
    ///
    /// # Panics
    /// When they do not fit `data` or overlap.
    #[must_use]
    pub fn strided(data: &'a [f32], rows: usize, dim: usize, stride: usize) -> Self {
        check(data.len(), rows, dim, stride);
        // SAFETY: the rows lie in `data`, which is borrowed for 'a.
        unsafe { Self::from_raw(data.as_ptr(), rows, dim, stride) }
    }

    /// Rows in memory that no slice describes, such as columns of a matrix whose other columns are being written.
    ///
    /// # Safety
    /// For 'a every row must be readable, and nobody may write it.
    #[must_use]
    pub unsafe fn from_raw(start: *const f32, rows: usize, dim: usize, stride: usize) -> Self {
        Self { start, rows, dim, stride, borrow: PhantomData }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// One row.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    #[must_use]
    pub fn row(&self, index: usize) -> &'a [f32] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: the row is inside by the assertion and by construction.
        unsafe { std::slice::from_raw_parts(self.start.add(index * self.stride), self.dim) }
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// When there are no such rows.
    #[must_use]
    pub fn part(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        Self { start: self.start.wrapping_add(rows.start * self.stride), rows: rows.len(), ..*self }
    }

    /// Some of the columns of every row.
    ///
    /// # Panics
    /// When there are no such columns.
    #[must_use]
    pub fn columns(&self, columns: Range<usize>) -> Self {
        assert!(
            columns.start <= columns.end && columns.end <= self.dim,
            "columns {columns:?} of {}",
            self.dim
        );
        Self { start: self.start.wrapping_add(columns.start), dim: columns.len(), ..*self }
    }
}

impl<'a> RowsMut<'a> {
    /// Rows of `dim` values that lie one after another and fill `data`.
    ///
    /// # Panics
    /// When `data` is not whole rows.
    #[must_use]
    pub fn new(data: &'a mut [f32], dim: usize) -> Self {
        assert!(
            dim > 0 && data.len().is_multiple_of(dim),
            "{} values are not whole rows of {dim}",
            data.len()
        );
        let rows = data.len() / dim;
        Self::strided(data, rows, dim, dim)
    }

    /// Rows of `dim` values, `stride` apart, the first at the start of `data`.
    ///
    /// # Panics
    /// When they do not fit `data` or overlap.
    #[must_use]
    pub fn strided(data: &'a mut [f32], rows: usize, dim: usize, stride: usize) -> Self {
        check(data.len(), rows, dim, stride);
        // SAFETY: the rows lie in `data`, which is exclusively borrowed for 'a.
        unsafe { Self::from_raw(data.as_mut_ptr(), rows, dim, stride) }
    }

    /// Rows in memory that no exclusive slice describes, such as columns of a matrix whose other columns are in use.
    ///
    /// # Safety
    /// For 'a every row must be writable, and nobody else may read or write it.
    #[must_use]
    pub unsafe fn from_raw(start: *mut f32, rows: usize, dim: usize, stride: usize) -> Self {
        Self { start, rows, dim, stride, borrow: PhantomData }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in a row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// A second handle to the same rows, with which another worker writes its part.
    ///
    /// # Safety
    /// No value is written through one handle while it is read or written through another.
    #[must_use]
    pub unsafe fn alias(&self) -> RowsMut<'a> {
        Self { ..*self }
    }

    /// One row.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline]
    pub fn row(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        // SAFETY: the row is inside by the assertion and by construction; rows do not overlap.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(index * self.stride), self.dim) }
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// When there are no such rows.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        Self { start: self.start.wrapping_add(rows.start * self.stride), rows: rows.len(), ..self }
    }

    /// Some of the columns of every row.
    ///
    /// # Panics
    /// When there are no such columns.
    #[must_use]
    pub fn columns(self, columns: Range<usize>) -> Self {
        assert!(
            columns.start <= columns.end && columns.end <= self.dim,
            "columns {columns:?} of {}",
            self.dim
        );
        Self { start: self.start.wrapping_add(columns.start), dim: columns.len(), ..self }
    }
}

impl Src<'_> {
    /// Panics unless the operand has a value for every value of `out`.
    pub(super) fn check(&self, out: &RowsMut<'_>) {
        match self {
            Src::Rows(x) => {
                assert_eq!((x.rows, x.dim), (out.rows, out.dim), "operand and output differ in shape");
            }
            Src::Row(x) => assert_eq!(x.len(), out.dim, "operand row and output row differ in length"),
        }
    }

    /// Where the operand of the output row with number `index` starts. Valid for as many values as that row, once
    /// [`Src::check`] has passed.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> *const f32 {
        match self {
            Src::Rows(x) => x.row(index).as_ptr(),
            Src::Row(x) => x.as_ptr(),
        }
    }
}

impl<'a> From<Rows<'a>> for Src<'a> {
    fn from(rows: Rows<'a>) -> Self {
        Src::Rows(rows)
    }
}
