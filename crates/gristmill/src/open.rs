//! Opening checkpoints, with what is wrong told in the order in which it matters.

use std::path::Path;

use formats::{Bytes, Checkpoint, CheckpointError};

use crate::error::Error;

/// Opens a GGUF file or a Hugging Face folder. A folder whose weights are not all there and whose architecture is not known is
/// refused for the latter: fetching the rest would not help.
///
/// # Errors
/// There is no readable checkpoint at `path`, or none for which there is code.
pub fn open_checkpoint(path: impl AsRef<Path>) -> Result<Checkpoint, Error> {
    let path = path.as_ref();
    let error = match Checkpoint::open(path) {
        Ok(checkpoint) => return Ok(checkpoint),
        Err(error) => error,
    };
    if let CheckpointError::Folder(folder) = &error
        && folder.is_of_weights()
        && let Ok(config) = Bytes::map(&path.join("config.json"))
    {
        models::check_architecture(&config)
            .map_err(|source| Error::Model { path: path.to_owned(), source })?;
    }
    Err(error.into())
}
