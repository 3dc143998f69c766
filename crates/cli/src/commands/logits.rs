//! `gristmill logits`: what a model predicts at every position of a token sequence.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use gristmill::score;

use crate::args::LoadArgs;
use crate::output::results;

/// Bytes of output that are held back. What fails before them leaves nothing on standard output; more, as a long prompt of a
/// large vocabulary has, which has gigabytes, is written as it comes.
const HELD_BACK: usize = 16 << 20;

/// Print the logits of every position of a token sequence
///
/// When a position has none that JSON can hold, that is an error; of less than 16 MiB nothing is printed then, of more what was
/// printed before is cut off.
#[derive(Args, Debug)]
pub(crate) struct LogitsArgs {
    /// Token ids with commas between them, as `tokenize --ids` prints them; nothing is added to them
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',', required = true, value_parser = token_id,
          allow_negative_numbers = true)]
    ids: Vec<u32>,
    /// Output format: `json` is {"vocab": V, "logits": [[...], ...]}, a row per position
    #[arg(long, default_value = "json")]
    format: Format,
    /// Positions to print
    #[arg(long, default_value = "all")]
    rows: Rows,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Format {
    /// One JSON object
    Json,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Rows {
    /// Every position
    All,
    /// The last position alone
    Last,
}

/// One of the ids.
fn token_id(text: &str) -> Result<u32, String> {
    match text.trim() {
        "" => {
            Err("an id is missing: ids have one comma between them and none at the end, as in `5,17,9`"
                .into())
        }
        id => id.parse().map_err(|_| format!("`{id}` is no token id: ids are whole numbers, as in `5,17,9`")),
    }
}

/// Runs the command.
pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let mut engine = args.load.engine()?;
    let vocab = engine.info().vocab;
    let from = match args.rows {
        Rows::All => 0,
        Rows::Last => args.ids.len() - 1,
    };
    let mut out = BufWriter::with_capacity(HELD_BACK, results());
    let mut written: Result<()> = Ok(());
    match args.format {
        Format::Json => {
            // When rows can no longer be written, as when the reader has gone, the rest is not computed.
            let scored = score(&mut engine, args.ids.clone(), from, |first, logits| {
                written = rows(&mut out, vocab, first, first == from, logits);
                if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            if let Err(error) = scored.map_err(anyhow::Error::from).and(written) {
                // What is held back stays so.
                drop(out.into_parts());
                return Err(error);
            }
            writeln!(out, "]}}")?;
        }
    }
    out.flush()?;
    Ok(())
}

fn rows(out: &mut impl Write, vocab: usize, first: usize, begin: bool, logits: &[f32]) -> Result<()> {
    if begin {
        write!(out, "{{\"vocab\": {vocab}, \"logits\": [")?;
    }
    for (i, row) in logits.chunks_exact(vocab).enumerate() {
        if let Some(id) = row.iter().position(|x| !x.is_finite()) {
            bail!("position {}: the logit of token {id} is {}, which JSON cannot hold", first + i, row[id]);
        }
        if !(begin && i == 0) {
            out.write_all(b", ")?;
        }
        // The shortest digits that read back as the same f32.
        serde_json::to_writer(&mut *out, row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{rows, token_id};

    #[test]
    fn ids_may_have_spaces_around_them() {
        assert_eq!((token_id("5"), token_id(" 17 "), token_id("0")), (Ok(5), Ok(17), Ok(0)));
        assert!(
            token_id("").unwrap_err().contains("missing") && token_id(" ").unwrap_err().contains("missing")
        );
        for bad in ["-1", "two", "1 2", "4294967296", "1.0"] {
            assert!(token_id(bad).unwrap_err().contains(&format!("`{bad}` is no token id")), "{bad}");
        }
    }

    #[test]
    fn pieces_make_one_array_and_every_digit_counts() {
        let mut out = vec![];
        rows(&mut out, 2, 3, true, &[0.1, -1.0e-30, 2.0, f32::MAX]).unwrap();
        rows(&mut out, 2, 5, false, &[1.0 / 3.0, 0.0]).unwrap();
        out.extend(b"]}");
        let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(read["vocab"], 2);
        let back: Vec<Vec<f32>> = serde_json::from_value(read["logits"].clone()).unwrap();
        assert_eq!(back, [[0.1, -1.0e-30], [2.0, f32::MAX], [1.0 / 3.0, 0.0]]);
        assert!(String::from_utf8(out).unwrap().contains("[0.33333334,0.0]"));
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        let error = rows(&mut vec![], 2, 3, true, &[0.0, 1.0, f32::NAN, 0.0]).unwrap_err();
        assert!(error.to_string().contains("position 4: the logit of token 0 is NaN"), "{error}");
    }
}
