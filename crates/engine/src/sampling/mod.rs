//! From one row of logits to one token.
//!
//! The policy, in order: logit bias, penalties, then the four stages of
//! [`SamplingOptions::stages`] (by default temperature, top-k, top-p, min-p), then one draw. Every truncation is exact
//! over the whole vocabulary, whatever its size, and orders tokens by logit, highest first, then by id, lowest first.
//! The draw comes from [`graph::Stream`], keyed by seed and token index, so it does not depend on what else ran. Weights
//! are integers ([`tensor::sampling`]), so a device that draws ([`tensor::Op::Sample`]) draws the same token.
//!
//! A [`CustomSampler`] sees a row before all of this and may settle the token itself.

mod custom;
mod history;
mod likelihood;
mod options;
mod sampler;

use thiserror::Error;

pub use custom::{CustomSampler, CustomSampling, Draw, Seen};
pub use likelihood::negative_log_likelihood;
pub use options::{SamplingOptions, Stage};
pub use sampler::{Candidate, Logprobs, Sampled, Sampler};

/// Why sampling options or a row of logits were refused.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// An option is outside its range.
    #[error("{option} is {value}: {expected}")]
    Option {
        /// Name of the option, as in [`SamplingOptions`].
        option: &'static str,
        /// The value given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A token id is not in the vocabulary.
    #[error("{place}: token id {id} is beyond the vocabulary of {vocab} tokens")]
    Id {
        /// Where the id was given.
        place: &'static str,
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// The row of logits is not as long as the vocabulary.
    #[error("{got} logits were given for a vocabulary of {vocab} tokens")]
    LogitCount {
        /// Length of the row.
        got: usize,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// A logit is NaN or positive infinity, so the computation before it went wrong.
    #[error(
        "the logit of token {id} is NaN or +inf: the model's weights, or their quantisation, give values that are no numbers"
    )]
    Logit {
        /// The first such token.
        id: u32,
    },
    /// An option takes a logit to NaN or positive infinity.
    #[error(
        "{option} takes the logit of token {id} beyond the largest number: use a value that changes logits less"
    )]
    Overflow {
        /// Name of the option, as in [`SamplingOptions`].
        option: &'static str,
        /// The first such token.
        id: u32,
    },
    /// The caller's own sampler refused to go on, or gave what cannot be used.
    #[error("the custom sampler: {0}")]
    Custom(String),
    /// Every token is at negative infinity.
    #[error("no token is left to sample: every logit is -inf or forbidden by bias")]
    NothingLeft,
}
