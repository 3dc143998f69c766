//! Notes and progress on standard error.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A remark that is no result.
pub(crate) fn note(text: impl Display) {
    say(format_args!("\x1b[2m{text}\x1b[0m"));
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

/// Bytes in the unit a reader grasps.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", n as f64 / f64::from(1 << 30)),
    }
}
