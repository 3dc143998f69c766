//! Recognising files that are not what they were taken for.

/// What a file is instead of a checkpoint, and what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Foreign {
    /// No bytes.
    #[error("the file is empty: the download did not finish, fetch it again")]
    Empty,
    /// A stand-in that Git leaves when large files are not fetched.
    #[error("a Git LFS pointer, not the file itself: fetch it with `git lfs pull`")]
    LfsPointer,
    /// `torch.save`, old or new.
    #[error(
        "a PyTorch pickle (.bin, .pt, .pth), which can run code when loaded and is not read: convert it to safetensors"
    )]
    Pickle,
    /// Typically an error page saved under the model's name.
    #[error("a web page, not a model: the download went wrong, fetch it again")]
    WebPage,
    /// Weights without their configuration.
    #[error(
        "a single safetensors file, which lacks the model's configuration: give the folder with its config.json"
    )]
    Safetensors,
    /// A part of a folder.
    #[error("a JSON file: give the folder it lies in")]
    Json,
    /// The other container.
    #[error("a GGUF file: give its path instead of the folder's")]
    Gguf,
}

impl Foreign {
    /// Looks at the first bytes. GGUF and safetensors are recognised too; callers that expect them drop those answers.
    pub(crate) fn recognise(file: &[u8]) -> Option<Self> {
        let text = file.trim_ascii_start();
        Some(match file {
            [] => Foreign::Empty,
            [b'G', b'G', b'U', b'F', ..] => Foreign::Gguf,
            // Before pickles: a header of 640 bytes begins like one.
            [_, _, _, _, _, 0, 0, 0, b'{', ..] => Foreign::Safetensors,
            // Zip (torch >= 1.6), and the opcode PROTO with its version.
            [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, ..] => Foreign::Pickle,
            _ if file.starts_with(b"version https://git-lfs") => Foreign::LfsPointer,
            _ if starts_with_ignoring_case(text, b"<!doctype")
                || starts_with_ignoring_case(text, b"<html") =>
            {
                Foreign::WebPage
            }
            _ if matches!(text, [b'{', b'"' | b' ' | b'\n' | b'\r' | b'\t', ..]) => Foreign::Json,
            _ => return None,
        })
    }
}

fn starts_with_ignoring_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// A name or message out of a file, short enough to repeat.
pub(crate) fn clip(text: &str) -> String {
    const LIMIT: usize = 160;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
