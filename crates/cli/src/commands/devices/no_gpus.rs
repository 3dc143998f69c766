//! Builds without support for GPUs see none.

use std::io::Write;

use anyhow::Result;
use serde_json::Value;

/// There are none to list.
pub(super) fn print(_: &mut impl Write) -> Result<bool> {
    Ok(false)
}

/// There are none to list.
pub(super) fn json() -> Vec<Value> {
    vec![]
}
