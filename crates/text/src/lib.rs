//! Tokenizers, incremental detokenisation, chat templates and stop strings.
