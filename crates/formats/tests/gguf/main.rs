//! The GGUF reader and writer.

mod hostile;
mod raw_gguf;
mod split;
mod write;
