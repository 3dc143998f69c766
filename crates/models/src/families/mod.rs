//! One file per family: what its configuration means and how its layers are put together.

pub(crate) mod gemma3;
pub(crate) mod lfm2;
pub(crate) mod llama;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod qwen3_moe;
