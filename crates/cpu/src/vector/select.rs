//! The largest values of a row. Ties go to the lowest index.

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
