//! Encoders: from f32 rows to the element types that files hold.
//!
//! An encoder chooses scales that make the weighted squared error of a block small. Weights come from the importance of a
//! column, as an importance matrix tells it (the mean square of the activation that meets it). Without one, Q4_0 to Q5_1,
//! Q1_0 and the 4-bit floats weigh all elements alike, and the formats with sub-blocks, whose scales are few bits, and
//! those with a code book weigh by size: the large weights of a block matter more to a product than their share of the
//! squared error says.

mod affine;
mod levels;
mod pack;
mod search;
mod symmetric;
#[cfg(test)]
mod tests;

use crate::DType;

/// Why a row could not be encoded.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The type has no encoder.
    #[error("there is no encoder for {0}")]
    NoEncoder(DType),
    /// The row ends inside a block.
    #[error("rows of {len} elements do not fill whole blocks of {} {dtype} elements", .dtype.block_len())]
    PartialBlock {
        /// The type asked for.
        dtype: DType,
        /// Length of the row.
        len: usize,
    },
    /// The destination is not as long as the encoded row.
    #[error("{len} elements of {dtype} do not take {out} bytes")]
    OutputLen {
        /// The type asked for.
        dtype: DType,
        /// Length of the row.
        len: usize,
        /// Length of the destination.
        out: usize,
    },
    /// There is not one importance for each element.
    #[error("{importance} values of importance for rows of {len} elements")]
    ImportanceLen {
        /// Length of the row.
        len: usize,
        /// Values given.
        importance: usize,
    },
    /// An element, or an importance, is no finite number, or is negative where it must not be.
    #[error("element {at} is {value}, which cannot be encoded")]
    NotFinite {
        /// Which one.
        at: usize,
        /// What it is.
        value: f32,
    },
    /// An element is too large for the type.
    #[error("element {at} is {value}, too large for {dtype}")]
    TooLarge {
        /// The type asked for.
        dtype: DType,
        /// Which one.
        at: usize,
        /// What it is.
        value: f32,
    },
}

/// The types that have an encoder.
pub fn has_encoder(dtype: DType) -> bool {
    use DType as D;
    !matches!(
        dtype,
        D::U32
            | D::Q8_1
            | D::Q8_K
            | D::IQ1_S
            | D::IQ1_M
            | D::IQ2_XXS
            | D::IQ2_XS
            | D::IQ2_S
            | D::IQ3_XXS
            | D::IQ3_S
    )
}

/// Whether errors are weighed, and hence whether an importance counts: where there is a choice.
fn is_weighed(dtype: DType) -> bool {
    dtype.is_quantised() && !matches!(dtype, DType::Q8_0 | DType::TQ1_0 | DType::TQ2_0)
}

/// Encodes a row of `row.len()` elements into `out`, which has [`DType::bytes_for`] of them.
///
/// `importance` has one value a column, none negative. F32, F16, BF16, Q8_0 and the ternary types do not use it.
///
/// # Errors
///
/// When the type has no encoder, lengths do not fit, or an element is not finite or too large for the type. What `out`
/// holds then is not said.
pub fn encode(
    dtype: DType,
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), EncodeError> {
    if !has_encoder(dtype) {
        return Err(EncodeError::NoEncoder(dtype));
    }
    let len = row.len();
    let Some(bytes) = dtype.bytes_for(len) else {
        return Err(EncodeError::PartialBlock { dtype, len });
    };
    if bytes != out.len() {
        return Err(EncodeError::OutputLen { dtype, len, out: out.len() });
    }
    if let Some(importance) = importance {
        if importance.len() != len {
            return Err(EncodeError::ImportanceLen { len, importance: importance.len() });
        }
        if let Some(at) = importance.iter().position(|v| !v.is_finite() || *v < 0.0) {
            return Err(EncodeError::NotFinite { at, value: importance[at] });
        }
    }
    if let Some(at) = row.iter().position(|v| !v.is_finite()) {
        return Err(EncodeError::NotFinite { at, value: row[at] });
    }
    let (step, width) = (dtype.block_len(), dtype.block_bytes());
    let mut weights = [0.0; 256];
    for (i, (x, out)) in row.chunks_exact(step).zip(out.chunks_exact_mut(width)).enumerate() {
        let importance = importance.map(|v| &v[i * step..][..step]);
        let weights: &[f32] =
            if is_weighed(dtype) { search::weights(dtype, x, importance, &mut weights) } else { &[] };
        if !block(dtype, x, weights, out) {
            let at = (0..step).max_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs())).unwrap_or(0);
            return Err(EncodeError::TooLarge { dtype, at: i * step + at, value: x[at] });
        }
    }
    Ok(())
}

/// Encodes one block; false when its scale is too large to be stored.
fn block(dtype: DType, x: &[f32], w: &[f32], out: &mut [u8]) -> bool {
    match dtype {
        DType::F32 => out.copy_from_slice(&x[0].to_le_bytes()),
        DType::F16 => return pack::half(out, 0, x[0]).is_finite(),
        DType::BF16 => {
            let value = half::bf16::from_f32(x[0]);
            out.copy_from_slice(&value.to_le_bytes());
            return value.is_finite();
        }
        DType::Q4_0 | DType::Q5_0 => return symmetric::legacy(dtype, x, w, out),
        DType::Q8_0 => return symmetric::eight_bits(x, out),
        DType::Q3_K => return symmetric::q3_k(x, w, out),
        DType::Q6_K => return symmetric::q6_k(x, w, out),
        DType::Q4_1 | DType::Q5_1 => return affine::legacy(dtype, x, w, out),
        DType::Q2_K => return affine::q2_k(x, w, out),
        DType::Q4_K | DType::Q5_K => return affine::super_block(dtype, x, w, out),
        DType::IQ4_NL => return levels::iq4_nl(x, w, out),
        DType::IQ4_XS => return levels::iq4_xs(x, w, out),
        DType::MXFP4 => return levels::mxfp4(x, w, out),
        DType::NVFP4 => return levels::nvfp4(x, w, out),
        DType::Q1_0 => return levels::signs(x, w, out),
        DType::TQ1_0 | DType::TQ2_0 => return levels::ternary(dtype, x, out),
        _ => unreachable!("refused above"),
    }
    true
}
