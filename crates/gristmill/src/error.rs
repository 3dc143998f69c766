//! Everything that can go wrong between a path and an answer.

use std::path::PathBuf;

use engine::EngineError;
use formats::CheckpointError;
use models::ModelError;
use text::{TemplateError, TokenizerError};

/// Why a model was not loaded or a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file or folder is not a checkpoint that can be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is readable, but not a model this program understands.
    #[error("{path}: {source}")]
    Model {
        /// The file or folder.
        path: PathBuf,
        /// What is not understood.
        source: ModelError,
    },
    /// The tokenizer is missing or not understood.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The checkpoint has no tokenizer data.
    #[error("text cannot be turned into tokens: {0}")]
    NoTokenizer(String),
    /// The chat template is missing or failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine stopped with the request unanswered.
    #[error(
        "the engine has nothing left to do and the request has not been answered; this is a fault of the program"
    )]
    Unanswered,
    /// A conversation does not allow what was asked of it.
    #[error("{0}")]
    Chat(String),
    /// The device does not exist or cannot be opened.
    #[error("{0}")]
    Device(String),
    /// An option is outside its range.
    #[error("option {option}: {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is allowed.
        problem: String,
    },
}
