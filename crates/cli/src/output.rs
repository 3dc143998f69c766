//! Results on standard output; notes and progress on standard error.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::time::Duration;

use anyhow::Result;
use gristmill::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

/// Standard output, whose errors name it.
pub(crate) struct Results(StdoutLock<'static>);

/// Where results go.
pub(crate) fn results() -> Results {
    Results(io::stdout().lock())
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
        // The caller tries again what was interrupted.
        self.0.write(bytes).map_err(|e| if e.kind() == io::ErrorKind::Interrupted { e } else { named(e) })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// The number with the fewest digits that is this f32: JSON numbers are f64, where 0.1f32 has sixteen.
pub(crate) fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// A remark that is no result.
pub(crate) fn note(text: impl Display) {
    say(format_args!("\x1b[2m{text}\x1b[0m"));
}

/// What the user had better know.
pub(crate) fn warn(text: impl Display) {
    say(format_args!("\x1b[1;33mwarning:\x1b[0m {text}"));
}

/// What went wrong.
pub(crate) fn error(text: impl Display) {
    say(format_args!("\x1b[1;31merror:\x1b[0m {text}"));
}

/// A line on standard error. One that cannot be written is lost: results must not depend on who listens there.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Whether standard error can show what changes in place.
fn can_move() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A bar over bytes; invisible where standard error is no terminal, or one that cannot move its cursor.
pub(crate) fn byte_bar(label: &'static str) -> ProgressBar {
    let sizes = |state: &ProgressState, out: &mut dyn fmt::Write| {
        let (done, all) = (ByteSize(state.pos()), ByteSize(state.len().unwrap_or(0)));
        let _ = write!(out, "{done} of {all}");
    };
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {sizes}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let target = if can_move() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    bar.set_style(style.progress_chars("=> ").with_key("sizes", sizes));
    bar.set_message(label);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
