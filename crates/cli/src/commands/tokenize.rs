//! `gristmill tokenize`: text to tokens.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use gristmill::{EncodeOptions, tokenizer_of};

use crate::args::ModelArgs;
use crate::output::results;
use crate::resolve::at;

/// Turn text into tokens
#[derive(Args, Debug)]
pub(crate) struct TokenizeArgs {
    /// The text; `-` reads standard input
    #[arg(allow_hyphen_values = true)]
    text: Option<String>,
    /// Print only the ids, on one line with commas between them, as `logits --ids` takes them
    #[arg(long)]
    ids: bool,
    /// Leave out the tokens that the model's file adds around a text
    #[arg(long)]
    no_add_special: bool,
    /// Read special tokens written in the text, like `<|im_end|>`, as plain text
    #[arg(long)]
    no_parse_special: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// Runs the command.
pub(crate) fn run(args: &TokenizeArgs) -> Result<()> {
    let text = super::text_argument(args.text.clone(), "the text")?;
    let (path, checkpoint) = args.model.open()?;
    let tokenizer = tokenizer_of(&checkpoint).map_err(|error| at(&path, error))?;
    let options = EncodeOptions { add_special: !args.no_add_special, parse_special: !args.no_parse_special };
    let ids = tokenizer.encode(&text, options)?;
    let mut out = std::io::BufWriter::new(results());
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else {
        for id in ids {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            // Bytes that are no character of their own are shown as escapes.
            writeln!(out, "{id:>7}  \"{}\"", escape(&bytes))?;
        }
    }
    out.flush()?;
    Ok(())
}

/// A token's bytes as text; what is not printable UTF-8 becomes an escape.
fn escape(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        shown.extend(chunk.valid().chars().flat_map(char::escape_debug));
        shown.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn broken_characters_are_escaped() {
        assert_eq!(escape("a\n\u{e9}".as_bytes()), "a\\n\u{e9}");
        assert_eq!(escape(&[0xe4, 0xbd]), "\\xe4\\xbd");
    }
}
