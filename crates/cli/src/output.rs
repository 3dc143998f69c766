//! Results on standard output; notes and progress on standard error.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use anyhow::Result;
use gristmill::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

/// Standard output, whose errors name it. At a terminal control characters are shown as [`visible`] has them: models, files and
/// servers say what is written. Elsewhere every byte is as it is.
pub(crate) struct Results {
    out: StdoutLock<'static>,
    terminal: bool,
}

/// Where results go.
pub(crate) fn results() -> Results {
    let out = io::stdout().lock();
    let terminal = out.is_terminal();
    Results { out, terminal }
}

/// Where text of this program's own goes, colours included.
pub(crate) fn own_results() -> Results {
    Results { out: io::stdout().lock(), terminal: false }
}

/// A text without what a terminal would obey: control characters other than line breaks and tabs are shown as escapes.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let shown = |mut all: String, c: char| {
        if obeyed(c) {
            all.extend(c.escape_default())
        } else {
            all.push(c)
        }
        all
    };
    Cow::Owned(text.chars().fold(String::with_capacity(text.len() + 8), shown))
}

/// The kind stays what it was: a reader that has gone is no failure.
fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output cannot be written: {error}"))
}

impl Results {
    /// A value as JSON, indented, with a line break behind it.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let mut out = io::BufWriter::new(self);
        serde_json::to_writer_pretty(&mut out, value)?;
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

impl Write for Results {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What is written is text, and comes in whole characters.
        if self.terminal
            && let Ok(text) = std::str::from_utf8(bytes)
            && let Cow::Owned(shown) = visible(text)
        {
            self.out.write_all(shown.as_bytes()).map_err(named)?;
            return Ok(bytes.len());
        }
        // The caller tries again what was interrupted.
        self.out.write(bytes).map_err(|e| if e.kind() == io::ErrorKind::Interrupted { e } else { named(e) })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(named)
    }
}

/// The number with the fewest digits that is this f32: JSON numbers are f64, where 0.1f32 has sixteen.
pub(crate) fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// A remark that is no result.
pub(crate) fn note(text: impl Display) {
    say(format_args!("\x1b[2m{}\x1b[0m", visible(&text.to_string())));
}

/// What the user had better know.
pub(crate) fn warn(text: impl Display) {
    say(format_args!("\x1b[1;33mwarning:\x1b[0m {}", visible(&text.to_string())));
}

/// What went wrong.
pub(crate) fn error(text: impl Display) {
    say(format_args!("\x1b[1;31merror:\x1b[0m {}", visible(&text.to_string())));
}

/// A line on standard error, of which what is not this program's own is [`visible`]. One that cannot be written is lost: results must not depend on who listens there.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Whether standard error can show what changes in place.
fn can_move() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A bar over so many bytes, or over as many as there will be; invisible where standard error is no terminal, or one that cannot
/// move its cursor.
pub(crate) fn byte_bar(label: &'static str, total: Option<u64>) -> ProgressBar {
    let sizes = |state: &ProgressState, out: &mut dyn fmt::Write| {
        let _ = out.write_str(&sizes(state.pos(), state.len()));
    };
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {sizes}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let target = if can_move() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    // A bar over nothing is drawn full.
    let bar = ProgressBar::with_draw_target(total.filter(|total| *total > 0), target);
    bar.set_style(style.progress_chars("=> ").with_key("sizes", sizes));
    bar.set_message(label);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How far something is.
fn sizes(done: u64, all: Option<u64>) -> String {
    match (done, all) {
        (0, None) => String::new(),
        (done, None) => ByteSize(done).to_string(),
        (done, Some(all)) => format!("{} of {}", ByteSize(done), ByteSize(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (text, shown) in [
            ("plain \u{fc} \u{1f600}\n\ttext", "plain \u{fc} \u{1f600}\n\ttext"),
            ("\x1b]0;title\x07\r", "\\u{1b}]0;title\\u{7}\\r"),
            ("a\u{9b}2J\x7f\0", "a\\u{9b}2J\\u{7f}\\u{0}"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn sizes_that_are_not_known_are_not_told() {
        assert_eq!([sizes(0, None), sizes(2048, None)], ["", "2.0 KiB"]);
        assert_eq!(sizes(1024, Some(2048)), "1.0 KiB of 2.0 KiB");
        // Over nothing a bar would be full.
        assert_eq!(byte_bar("reading", Some(0)).length(), None);
    }
}
