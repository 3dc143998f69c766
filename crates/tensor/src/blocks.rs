//! Decoders of every element type to f32: the meaning of the stored bytes.
//!
//! Each quantised format has one file with its byte layout and its decoder; all layouts are GGML's. The order of
//! floating-point operations is part of the definition: results are bit for bit those of the Python package
//! `gguf` (`gguf.quants.dequantize`), without fused multiply-add; of Q1_0, Q8_1 and Q8_K, which it does not decode,
//! they are the formula of the format. Multi-byte fields are little-endian on every host, and no alignment is asked of
//! the source.

mod fields;
mod grids;
mod integers;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
mod k_scales;
pub mod mxfp4;
pub mod nvfp4;
mod plain;
pub mod q1_0;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod q8_1;
pub mod q8_k;
#[cfg(test)]
mod tests;
pub mod tq1_0;
pub mod tq2_0;

pub use fields::{Coding, Field, Role, codes, fields};
pub use integers::{Integers, integers};
pub use k_scales::unpack_scales_mins;

use crate::DType;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// The type holds no real numbers.
    #[error("{0} holds integers, which have no f32 decoding")]
    NotReal(DType),
    /// The source ends inside a block.
    #[error("{bytes} bytes of {dtype} do not fill whole blocks of {} bytes", .dtype.block_bytes())]
    PartialBlock {
        /// The type asked for.
        dtype: DType,
        /// Length of the source.
        bytes: usize,
    },
    /// The destination does not have one place per stored element.
    #[error("{elements} elements of {dtype} cannot fill an output of {out} elements")]
    OutputLen {
        /// The type asked for.
        dtype: DType,
        /// Elements stored in the source.
        elements: usize,
        /// Length of the destination.
        out: usize,
    },
}

/// Decodes whole blocks of `dtype` to f32.
///
/// `src` holds `n` blocks of [`DType::block_bytes`] bytes and `out` exactly `n *` [`DType::block_len`] elements.
/// Plain types count as blocks of one element.
///
/// # Errors
///
/// When `dtype` is [`DType::U32`], `src` ends inside a block, or `out` has another length; `out` is then untouched.
pub fn decode(dtype: DType, src: &[u8], out: &mut [f32]) -> Result<(), BlockError> {
    if dtype == DType::U32 {
        return Err(BlockError::NotReal(dtype));
    }
    let blocks = src.len() / dtype.block_bytes();
    if blocks * dtype.block_bytes() != src.len() {
        return Err(BlockError::PartialBlock { dtype, bytes: src.len() });
    }
    // A block may have seven times as many elements as bytes; `out` is never as long as what saturates.
    let elements = blocks.saturating_mul(dtype.block_len());
    if elements != out.len() {
        return Err(BlockError::OutputLen { dtype, elements, out: out.len() });
    }
    match dtype {
        DType::U32 => unreachable!("refused above"),
        DType::F32 => each_block(src, out, plain::f32_block),
        DType::F16 => each_block(src, out, plain::f16_block),
        DType::BF16 => each_block(src, out, plain::bf16_block),
        DType::Q4_0 => each_block(src, out, q4_0::decode_block),
        DType::Q4_1 => each_block(src, out, q4_1::decode_block),
        DType::Q5_0 => each_block(src, out, q5_0::decode_block),
        DType::Q5_1 => each_block(src, out, q5_1::decode_block),
        DType::Q8_0 => each_block(src, out, q8_0::decode_block),
        DType::Q4_K => each_block(src, out, q4_k::decode_block),
        DType::Q5_K => each_block(src, out, q5_k::decode_block),
        DType::Q6_K => each_block(src, out, q6_k::decode_block),
        DType::Q2_K => each_block(src, out, q2_k::decode_block),
        DType::Q3_K => each_block(src, out, q3_k::decode_block),
        DType::Q1_0 => each_block(src, out, q1_0::decode_block),
        DType::Q8_1 => each_block(src, out, q8_1::decode_block),
        DType::Q8_K => each_block(src, out, q8_k::decode_block),
        DType::IQ1_S => each_block(src, out, iq1_s::decode_block),
        DType::IQ1_M => each_block(src, out, iq1_m::decode_block),
        DType::IQ2_XXS => each_block(src, out, iq2_xxs::decode_block),
        DType::IQ2_XS => each_block(src, out, iq2_xs::decode_block),
        DType::IQ2_S => each_block(src, out, iq2_s::decode_block),
        DType::IQ3_XXS => each_block(src, out, iq3_xxs::decode_block),
        DType::IQ3_S => each_block(src, out, iq3_s::decode_block),
        DType::IQ4_NL => each_block(src, out, iq4_nl::decode_block),
        DType::IQ4_XS => each_block(src, out, iq4_xs::decode_block),
        DType::TQ1_0 => each_block(src, out, tq1_0::decode_block),
        DType::TQ2_0 => each_block(src, out, tq2_0::decode_block),
        DType::MXFP4 => each_block(src, out, mxfp4::decode_block),
        DType::NVFP4 => each_block(src, out, nvfp4::decode_block),
    }
    Ok(())
}

/// Runs one block decoder over all blocks; the lengths have been checked.
fn each_block<const BYTES: usize, const LEN: usize>(
    src: &[u8],
    out: &mut [f32],
    decode_block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, src_rest) = src.as_chunks::<BYTES>();
    let (outs, out_rest) = out.as_chunks_mut::<LEN>();
    debug_assert!(src_rest.is_empty() && out_rest.is_empty() && blocks.len() == outs.len());
    for (block, out) in blocks.iter().zip(outs) {
        decode_block(block, out);
    }
}

/// The f16 at byte `at` of a block, as f32.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The u32 at byte `at` of a block.
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
