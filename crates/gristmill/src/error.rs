//! Everything that can go wrong between a path and an answer.

use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;

use engine::EngineError;
use formats::CheckpointError;
use models::ModelError;
use text::{TemplateError, TokenizerError};

/// Why a model was not loaded or a request failed.
///
/// Its `Debug` form is the message with its causes: that is what a program prints whose `main` gives back a `Result`, and who runs
/// it has to read it.
#[derive(thiserror::Error)]
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

/// The message, then its causes, less those that the message before them tells already.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !told.contains(&text) {
                told += ": ";
                told += &text;
            }
            next = cause.source();
        }
        f.write_str(&told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_is_for_people() {
        let source = ModelError::MissingKey { key: "block_count".to_owned(), expected: "a number" };
        let io = std::io::Error::other("the mill stands still");
        for (error, parts) in [
            (Error::Model { path: "m.gguf".into(), source }, &["m.gguf: ", "`block_count` is missing"][..]),
            (CheckpointError::Io { path: "m.gguf".into(), source: io }.into(), &["m.gguf: ", "stands still"]),
            (Error::Option { option: "chunk", problem: "is 0".to_owned() }, &["option chunk: is 0"]),
        ] {
            let printed = format!("{error:?}");
            assert!(parts.iter().all(|part| printed.matches(part).count() == 1), "{printed}");
            assert!(!printed.contains(['{', '"']), "{printed}");
        }
    }
}
