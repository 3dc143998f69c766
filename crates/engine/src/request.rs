//! What is asked of the engine and what it answers.

use crate::error::EngineError;
use crate::sampling::{Sampled, SamplingOptions};

/// Names a request for as long as the engine lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// What to do with a prompt.
#[derive(Clone, Debug)]
pub enum Task {
    /// Continue it.
    Generate {
        /// Most tokens to generate; the context, which prompt and output share, ends the output too, and `None` is up
        /// to its end.
        max_tokens: Option<usize>,
        /// How tokens are chosen.
        sampling: SamplingOptions,
        /// Seed where the sampling options name none. The engine has no randomness of its own.
        entropy: u64,
        /// Tokens that end the output; they are reported, then the request finishes.
        stop: Vec<u32>,
    },
    /// Report logits of the prompt itself. A row with NaN or +inf in it fails the request ([`crate::EngineError::Numeric`]).
    Score {
        /// The first position whose logits are wanted; all later ones are reported too.
        from: usize,
    },
}

/// A prompt and its task.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids, special tokens included.
    pub prompt: Vec<u32>,
    /// What to do with it.
    pub task: Task,
}

/// Why a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// A stop token was generated, or the scores are complete.
    Stop,
    /// `max_tokens` were generated.
    MaxTokens,
    /// Prompt and output are as many tokens as the context holds.
    ContextFull,
}

/// One thing that happened to a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A token was generated.
    Token {
        /// The request.
        id: RequestId,
        /// The token and, where asked for, its log-probabilities.
        token: Sampled,
    },
    /// Logits of consecutive positions: of a prompt that is scored or, when the engine was made to report them, those
    /// that the next token is drawn from.
    Scores {
        /// The request.
        id: RequestId,
        /// Position of the first row.
        first: usize,
        /// Rows of `vocab` logits.
        logits: Vec<f32>,
    },
    /// Hidden states of consecutive prompt positions, when the engine was made with taps.
    Hidden {
        /// The request.
        id: RequestId,
        /// Output name, as in `hidden.3`.
        name: String,
        /// Position of the first row.
        first: usize,
        /// Rows of hidden size.
        rows: Vec<f32>,
    },
    /// The request has ended.
    Finished {
        /// The request.
        id: RequestId,
        /// Why.
        reason: Finish,
    },
    /// The request has failed and is gone.
    Failed {
        /// The request.
        id: RequestId,
        /// Why.
        error: EngineError,
    },
}

impl Event {
    /// The request it happened to.
    pub fn request(&self) -> RequestId {
        match self {
            Event::Token { id, .. }
            | Event::Scores { id, .. }
            | Event::Hidden { id, .. }
            | Event::Finished { id, .. }
            | Event::Failed { id, .. } => *id,
        }
    }
}
