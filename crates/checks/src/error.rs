//! What keeps a check from being made.

use std::path::PathBuf;

use engine::EngineError;
use formats::CheckpointError;
use formats::gguf::{GgufError, WriteError};
use models::ModelError;

/// Why a check could not be made. A check that was made and failed is a report.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file of the case is missing or not as its README says.
    #[error("{}: {problem}", .path.display())]
    Case {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An option is outside its range.
    #[error("option {option} is {value}, at least {least} is needed")]
    Option {
        /// The option.
        option: &'static str,
        /// The value given.
        value: usize,
        /// The least that makes sense.
        least: usize,
    },
    /// The checkpoint cannot be opened.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is of no model that is known.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine refused the model or a request, or a request failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A variant of a checkpoint cannot be written.
    #[error("the variant cannot be written: {0}")]
    Write(#[from] WriteError),
    /// A variant of a checkpoint cannot be read.
    #[error("the variant cannot be read: {0}")]
    Read(#[from] GgufError),
    /// The engine stopped with requests unanswered.
    #[error("the engine has nothing left to do and not every request has been answered")]
    Unanswered,
}
