//! What can go wrong in the engine.

use graph::backend::DeviceError;

use crate::sampling::SamplingError;

/// Why an engine was not made, or a request was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// An option is outside its range.
    #[error("option {option}: {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is allowed.
        problem: String,
    },
    /// The model could not be recorded or loaded.
    #[error("{0}")]
    Model(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model's own values are no numbers at a position of the sequence.
    #[error("at position {position}, {op}: {problem}; the weights may be damaged")]
    Numeric {
        /// The first such position.
        position: usize,
        /// The op that met them.
        op: String,
        /// What it met.
        problem: String,
    },
    /// Sampling options or logits were refused.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}: shorten the prompt or ask for a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// There is nothing to continue.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// A token id is not in the vocabulary.
    #[error("token {index} of the prompt is {id}, beyond the vocabulary of {vocab}")]
    TokenId {
        /// Position in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Even one sequence of this context does not fit.
    #[error(
        "{what} needs {needed} bytes and {available} are available: ask for a context of at most {fits} tokens"
    )]
    CacheTooSmall {
        /// What was to be allocated.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// Tokens that would fit.
        fits: usize,
    },
}
