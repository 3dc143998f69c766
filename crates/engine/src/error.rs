//! What can go wrong in the engine.

use graph::ByteSize;
use graph::backend::DeviceError;

use crate::sampling::SamplingError;

/// Why an engine was not made, or a request was refused or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
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
    #[error(
        "at position {position}, {op}: {problem}; the weights may be damaged, or their quantisation too coarse"
    )]
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
    /// The prompt leaves no room for output in the context.
    #[error(
        "the prompt has {context} tokens and the context holds {context}, prompt and output together: nothing is left \
         for output; shorten the prompt or ask for a larger context"
    )]
    NoRoomForOutput {
        /// Tokens of the prompt, and tokens the context holds.
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
    /// The memory for the cache does not hold the context asked for, or not even the smallest one.
    #[error(
        "a context of {context} tokens needs a cache of {}, and {} {}: {}",
        ByteSize(*.needed), ByteSize(*.available), available_because(*.given), what_fits(*.fits, *.least)
    )]
    CacheTooSmall {
        /// Tokens the context was to hold.
        context: usize,
        /// Bytes needed for one sequence of that length.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// Whether `available` is [`crate::EngineOptions::cache_bytes`], not what the device has free.
        given: bool,
        /// Tokens that would fit; 0 when not even one block does.
        fits: usize,
        /// Bytes of the smallest cache there is.
        least: u64,
    },
    /// The cache of a layer would be larger than what a device can have in one piece, whatever its memory.
    #[error(
        "a context of {context} tokens is too long for {device}, which can use only so much memory as the cache of one \
         layer: {}", what_one_state_holds(*.fits)
    )]
    ContextTooLong {
        /// The device's name.
        device: String,
        /// Tokens the context was to hold.
        context: usize,
        /// Tokens that would fit; 0 when not even one block does.
        fits: usize,
    },
}

fn what_one_state_holds(fits: usize) -> String {
    match fits {
        0 => "not even the smallest context fits".to_owned(),
        _ => format!("at most {fits} tokens fit"),
    }
}

fn available_because(given: bool) -> &'static str {
    if given { "is the limit set for it" } else { "of memory is free for it" }
}

fn what_fits(fits: usize, least: u64) -> String {
    match fits {
        0 => format!("not even the smallest context fits, which needs {}", ByteSize(least)),
        _ => format!("a context of at most {fits} tokens fits"),
    }
}
