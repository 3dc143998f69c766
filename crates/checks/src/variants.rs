//! Checkpoints like another one but for a part of it.

use formats::gguf::{GgmlType, GgufWriter, Value};
use formats::{Checkpoint, TensorView};
use tensor::DType;

use crate::error::CheckError;

/// The GGUF file of a GGUF checkpoint with more metadata, or with other values for keys that it has.
///
/// # Errors
/// Tensors that cannot be read, and what the writer refuses.
///
/// # Panics
/// When the checkpoint is not GGUF.
pub fn with_metadata(checkpoint: &Checkpoint, more: &[(&str, Value)]) -> Result<Vec<u8>, CheckError> {
    rewritten(checkpoint, more, |view| (view.dtype, view.bytes.to_vec()))
}

/// As [`with_metadata`], each tensor in the type and bytes that `tensor` gives for it.
pub(crate) fn rewritten(
    checkpoint: &Checkpoint,
    more: &[(&str, Value)],
    tensor: impl Fn(&TensorView) -> (DType, Vec<u8>),
) -> Result<Vec<u8>, CheckError> {
    let metadata = checkpoint.gguf().expect("a GGUF checkpoint");
    let mut tensors = vec![];
    for name in checkpoint.tensor_names() {
        let view = checkpoint
            .tensor(name)
            .map_err(|e| CheckError::Case { path: name.into(), problem: e.to_string() })?;
        let (dtype, bytes) = tensor(&view);
        tensors.push((name, view.shape, dtype, bytes));
    }
    let mut writer = GgufWriter::new();
    for (key, value) in metadata.iter().chain(more.iter().map(|(key, value)| (*key, value))) {
        writer.metadata(key, value.clone());
    }
    for (name, shape, dtype, bytes) in &tensors {
        let ggml_type = GgmlType::try_from(*dtype).expect("no tensor of a checkpoint is U32");
        writer.tensor(name, ggml_type, shape, bytes)?;
    }
    Ok(writer.to_bytes()?)
}
