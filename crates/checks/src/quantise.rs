//! Quantised variants of a checkpoint, to check block formats on models that are too small to be published in them.

use std::sync::Arc;

use formats::{Checkpoint, TensorView};
use models::Model;
use tensor::{DType, blocks, encode};

use crate::error::CheckError;
use crate::variants::rewritten;

/// Block formats for variants: short blocks, because the models are narrow.
pub const FORMATS: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::Q4_1];

/// The same model from a GGUF checkpoint with every matrix in `format` whose rows are whole blocks; the router of a
/// mixture stays as it is.
///
/// # Errors
/// Tensors that cannot be read, and what the writer or the family refuses.
///
/// # Panics
/// When the checkpoint is not GGUF, or `format` has no encoder.
pub fn quantised(checkpoint: &Checkpoint, format: DType) -> Result<Arc<Model>, CheckError> {
    let file = rewritten(checkpoint, &[], |view| {
        let whole =
            view.shape.len() > 1 && view.shape.last().is_some_and(|n| n.is_multiple_of(format.block_len()));
        if whole && !view.name.contains("ffn_gate_inp") {
            (format, encoded(format, &decode(view)))
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

fn encoded(format: DType, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0; values.len() / format.block_len() * format.block_bytes()];
    encode::encode(format, values, None, &mut out).expect("whole blocks of finite weights");
    out
}
