//! Reading checkpoints: GGUF files and Hugging Face folders.
//!
//! [`Checkpoint`] is the one view over both: hyper-parameters, named tensors with type, shape and bytes, and the
//! tokenizer's files. Beneath it lie the readers of each container, [`gguf`] and [`safetensors`].
//!
//! Everything read here is hostile until checked: sizes and offsets go through checked arithmetic, a count is
//! compared with the bytes that are left before anything is allocated for it, and what is wrong is a typed error
//! that names the place in the file. Tensor data is never copied; it is a view of the mapped file.

mod bytes;
mod checkpoint;
pub mod gguf;
mod listing;
pub mod safetensors;
mod sniff;

pub use bytes::Bytes;
pub use checkpoint::{
    Checkpoint, CheckpointError, Container, FileEntry, TensorEntry, TensorError, TensorView,
};
pub use safetensors::HfFile;
pub use sniff::Foreign;
