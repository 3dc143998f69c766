//! The largest values of a row. Ties go to the lowest index.

use crate::isa::{CpuIsa, Isa, Kernel};

/// Why a row has no largest values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// A value is NaN.
    #[error("value {index} of {len} is NaN")]
    Nan {
        /// Index of the first NaN.
        index: usize,
        /// Values in the row.
        len: usize,
    },
    /// There are fewer values than were asked for.
    #[error("{wanted} largest values of a row of {len} were asked for")]
    TooFew {
        /// How many were asked for.
        wanted: usize,
        /// Values in the row.
        len: usize,
    },
}

/// Index of the largest value.
///
/// # Errors
/// [`SelectError`] when the row is empty or has a NaN.
pub fn argmax(isa: CpuIsa, x: &[f32]) -> Result<u32, SelectError> {
    let (largest, nan) = isa.run(Largest { x });
    if nan {
        return Err(first_nan(x));
    }
    let index = x.iter().position(|&v| v == largest);
    index.map(|i| i as u32).ok_or(SelectError::TooFew { wanted: 1, len: x.len() })
}

/// The `values.len()` largest values, largest first and equal ones by index, with their indices. `scratch` is reused
/// from call to call.
///
/// # Errors
/// [`SelectError`] when there are too few values or one is NaN.
///
/// # Panics
/// When `values` and `indices` differ in length.
pub fn top_k(
    x: &[f32],
    scratch: &mut Vec<u32>,
    values: &mut [f32],
    indices: &mut [u32],
) -> Result<(), SelectError> {
    let k = values.len();
    assert_eq!(k, indices.len(), "as many indices as values");
    if k > x.len() {
        return Err(SelectError::TooFew { wanted: k, len: x.len() });
    }
    if x.iter().any(|v| v.is_nan()) {
        return Err(first_nan(x));
    }
    scratch.clear();
    scratch.extend(0..x.len() as u32);
    let order = |a: &u32, b: &u32| {
        let (x, y) = (x[*a as usize], x[*b as usize]);
        // No value is NaN.
        y.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
    };
    if k > 0 && k < x.len() {
        scratch.select_nth_unstable_by(k - 1, order);
    }
    scratch[..k].sort_unstable_by(order);
    indices.copy_from_slice(&scratch[..k]);
    for (value, &index) in values.iter_mut().zip(&*indices) {
        *value = x[index as usize];
    }
    Ok(())
}

fn first_nan(x: &[f32]) -> SelectError {
    SelectError::Nan { index: x.iter().position(|v| v.is_nan()).unwrap_or(0), len: x.len() }
}

struct Largest<'a> {
    x: &'a [f32],
}

impl Kernel for Largest<'_> {
    /// The largest value that is no NaN, and whether there is a NaN.
    type Out = (f32, bool);

    #[inline(always)]
    fn run<S: Isa>(self, s: S) -> Self::Out {
        let (chunks, rest) = (self.x.chunks_exact(S::LANES), self.x.len() % S::LANES);
        let mut largest = s.splat(f32::NEG_INFINITY);
        // The sign of (bits of infinity) - (bits of |x|) is set for a NaN alone.
        let mut nan = s.splat_i(0);
        for chunk in chunks {
            // SAFETY: the chunk has LANES values.
            let v = unsafe { s.load(chunk.as_ptr()) };
            largest = s.max(v, largest);
            nan = s.or_i(nan, s.sub_i(s.splat_i(0x7f80_0000), s.bits(s.abs(v))));
        }
        let mut lanes = [0f32; 16];
        let mut signs = [0i32; 16];
        // SAFETY: each array has room for the widest vector.
        unsafe {
            s.store(lanes.as_mut_ptr(), largest);
            s.store_i(signs.as_mut_ptr().cast(), nan);
        }
        let mut largest = f32::NEG_INFINITY;
        let mut nan = false;
        for lane in 0..S::LANES {
            largest = largest.max(lanes[lane]);
            nan |= signs[lane] < 0;
        }
        for &v in &self.x[self.x.len() - rest..] {
            largest = largest.max(v);
            nan |= v.is_nan();
        }
        (largest, nan)
    }
}
