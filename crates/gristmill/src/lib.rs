//! Run language models from Rust: load, generate, stream, chat.
