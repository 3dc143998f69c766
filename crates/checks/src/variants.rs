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

/// The shards of a GGUF checkpoint as llama.cpp's tool splits it: each holds the next so many tensors, the first one the
/// metadata.
///
/// # Errors
/// What the writer refuses.
///
/// # Panics
/// When the checkpoint is not GGUF, or the numbers do not add up to its tensors.
pub fn shards(checkpoint: &Checkpoint, tensors: &[usize]) -> Result<Vec<Vec<u8>>, CheckError> {
    let file = checkpoint.gguf_file().expect("a GGUF checkpoint");
    let total = file.tensors().count();
    assert_eq!(tensors.iter().sum::<usize>(), total, "all tensors have a shard");
    let mut all = file.tensors();
    let shard = |(no, n): (usize, &usize)| {
        let mut writer = GgufWriter::new();
        for (key, value) in file.metadata().iter().filter(|_| no == 0) {
            writer.metadata(key, value.clone());
        }
        writer.metadata("split.no", Value::U16(no as u16));
        writer.metadata("split.count", Value::U16(tensors.len() as u16));
        writer.metadata("split.tensors.count", Value::I32(total as i32));
        for info in all.by_ref().take(*n) {
            let (info, bytes) = file.tensor(&info.name).expect("listed");
            writer.tensor(&info.name, info.ggml_type, &info.shape, bytes)?;
        }
        Ok(writer.to_bytes()?)
    };
    tensors.iter().enumerate().map(shard).collect()
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
    // What is written is whole.
    let whole = metadata.iter().filter(|(key, _)| !key.starts_with("split."));
    for (key, value) in whole.chain(more.iter().map(|(key, value)| (*key, value))) {
        writer.metadata(key, value.clone());
    }
    for (name, shape, dtype, bytes) in &tensors {
        let ggml_type = GgmlType::try_from(*dtype).expect("no tensor of a checkpoint is U32");
        writer.tensor(name, ggml_type, shape, bytes)?;
    }
    Ok(writer.to_bytes()?)
}
