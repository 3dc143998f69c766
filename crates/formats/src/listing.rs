//! What a folder holds, for messages and choices.

use std::path::Path;

use crate::sniff::clip;

/// The names in a folder, sorted; none when it cannot be read.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A file that is not there; hub caches keep links, whose targets can be gone.
pub(crate) fn of_missing(dir: &Path, file: &str) -> String {
    match std::fs::read_link(dir.join(file)) {
        Ok(target) => format!("{} (a link to {}, which is gone)", clip(file), target.display()),
        Err(_) => clip(file),
    }
}
