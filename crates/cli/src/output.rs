//! Notes and progress on standard error.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A remark that is no result.
pub(crate) fn note(text: impl Display) {
    say(format_args!("\x1b[2m{text}\x1b[0m"));
}

/// What the user had better know.
pub(crate) fn warn(text: impl Display) {
    say(format_args!("\x1b[1;33mwarning:\x1b[0m {text}"));
}

/// A line on standard error. One that cannot be written is lost: results must not depend on who listens there.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// A bar over bytes; invisible where standard error is no terminal.
pub(crate) fn byte_bar(label: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes}");
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_message(label);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
