//! What the tests share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::Checkpoint;
use gristmill_models::Model;

/// The repository's folder of tests.
pub(crate) fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The model in a file or folder.
pub(crate) fn open(path: &Path) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Model::open(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
