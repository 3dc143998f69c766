//! Quantised variants of a checkpoint, to check block formats on models that are too small to be published in them.
//!
//! The encoders are the plainest there are: what counts is that all runs read the same blocks, not how good they are.

use std::sync::Arc;

use formats::{Checkpoint, TensorView};
use half::f16;
use models::Model;
use tensor::{DType, blocks};

use crate::error::CheckError;
use crate::variants::rewritten;

/// The block formats that there are encoders for.
pub const FORMATS: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::Q4_1];

/// Weights in a block of these formats.
const BLOCK: usize = 32;

/// The same model from a GGUF checkpoint with every matrix in `format` whose rows are whole blocks; the router of a
/// mixture stays as it is.
///
/// # Errors
/// Tensors that cannot be read, and what the writer or the family refuses.
///
/// # Panics
/// When the checkpoint is not GGUF, or `format` is none of [`FORMATS`].
pub fn quantised(checkpoint: &Checkpoint, format: DType) -> Result<Arc<Model>, CheckError> {
    let file = rewritten(checkpoint, &[], |view| {
        let whole = view.shape.len() > 1 && view.shape.last().is_some_and(|n| n % BLOCK == 0);
        if whole && !view.name.contains("ffn_gate_inp") {
            (format, encode(format, &decode(view)))
        } else {
            (view.dtype, view.bytes.to_vec())
        }
    })?;
    let checkpoint = Checkpoint::from_bytes(file)?;
    Ok(Arc::new(Model::open(Arc::new(checkpoint))?))
}

fn decode(view: &TensorView) -> Vec<f32> {
    let mut values = vec![0.0; view.shape.iter().product()];
    blocks::decode(view.dtype, view.bytes, &mut values).expect("a view holds what its type and shape need");
    values
}

fn encode(format: DType, values: &[f32]) -> Vec<u8> {
    let mut out = vec![];
    for block in values.chunks_exact(BLOCK) {
        let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let least = block.iter().copied().fold(f32::INFINITY, f32::min);
        let most = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut half = |value: f32| {
            let value = f16::from_f32(value);
            out.extend(value.to_le_bytes());
            value.to_f32()
        };
        // A block of equal values has a scale of zero; its codes do not matter.
        let step = |d: f32| if d == 0.0 { 1.0 } else { d };
        match format {
            DType::Q8_0 => {
                let d = step(half(largest / 127.0));
                out.extend(block.iter().map(|v| (v / d).round().clamp(-127.0, 127.0) as i8 as u8));
            }
            DType::Q4_0 => {
                let d = step(half(largest / 7.0));
                nibbles(&mut out, block, |v| (v / d).round() + 8.0);
            }
            DType::Q4_1 => {
                let d = step(half((most - least) / 15.0));
                let m = half(least);
                nibbles(&mut out, block, |v| ((v - m) / d).round());
            }
            other => panic!("there is no encoder for {other}"),
        }
    }
    out
}

fn nibbles(out: &mut Vec<u8>, block: &[f32], code: impl Fn(f32) -> f32) {
    let code = |v: f32| code(v).clamp(0.0, 15.0) as u8;
    let (low, high) = block.split_at(BLOCK / 2);
    out.extend(low.iter().zip(high).map(|(l, h)| code(*l) | code(*h) << 4));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_decode_to_nearby_values() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 20.0) / 32.0).collect();
        for (format, share) in FORMATS.into_iter().zip([1.0 / 250.0, 1.0 / 13.0, 1.0 / 29.0]) {
            let mut decoded = vec![0.0; 64];
            blocks::decode(format, &encode(format, &values), &mut decoded).unwrap();
            for (a, b) in values.iter().zip(&decoded) {
                assert!((a - b).abs() <= share * 2.0, "{format}: {a} and {b}");
            }
        }
    }
}
