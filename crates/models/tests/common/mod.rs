//! What the tests share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use formats::Checkpoint;
use gristmill_models::Model;

/// The goldens of the families here.
pub(crate) const CASES: &[&str] = &[
    "llama",
    "llama3_rope",
    "llama_linear_rope",
    "llama_yarn",
    "mistral",
    "mistral_nowindow",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "lfm2",
];

/// The repository's folder of tests.
pub(crate) fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The model in a file or folder.
pub(crate) fn open(path: &Path) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Model::open(Arc::new(checkpoint)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
