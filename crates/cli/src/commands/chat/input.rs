//! Turns from lines: of a terminal, with an editor and a history, or of a pipe.

use std::io::{BufRead, ErrorKind, IsTerminal, Read, stdin, stdout};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use gristmill::ByteSize;
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};

use super::super::MOST_PROMPT;
use crate::output::warn;

/// Opens and closes a message of several lines.
pub(super) const QUOTES: &str = "\"\"\"";

/// A line, if there is one.
pub(super) enum Line {
    /// Without its end.
    Text(String),
    /// Ctrl-C, or what is no text: what was typed is given up.
    Interrupted,
    /// There are no more.
    End,
}

/// Where lines come from.
pub(super) trait Lines {
    /// The next line; `inside` a message that has begun.
    fn line(&mut self, inside: bool) -> Result<Line>;
}

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) enum Turn {
    /// A message or a command.
    Said(String),
    /// An empty line, or one that was given up.
    Nothing,
    /// There is no more.
    End,
    /// There is no more, and a message had begun.
    Unfinished,
}

/// Reads a turn: a line; or several, of which all but the last end with `\`; or all from one that begins with three quotation
/// marks to one that ends with them.
///
/// # Errors
/// Lines cannot be read; a message does not end.
pub(super) fn turn(lines: &mut dyn Lines) -> Result<Turn> {
    bounded(lines, MOST_PROMPT as usize)
}

fn bounded(lines: &mut dyn Lines, most: usize) -> Result<Turn> {
    let first = match lines.line(false)? {
        Line::Text(line) => line,
        Line::Interrupted => return Ok(Turn::Nothing),
        Line::End => return Ok(Turn::End),
    };
    let (quoted, mut line) = match first.trim_start().strip_prefix(QUOTES) {
        Some(rest) => (true, rest.to_owned()),
        None => (false, first),
    };
    let mut said = String::new();
    loop {
        // Quotation marks end a message, and a backslash says that it does not end.
        let (part, ends) = if quoted {
            line.trim_end().strip_suffix(QUOTES).map_or((&*line, false), |last| (last, true))
        } else {
            line.strip_suffix('\\').map_or((&*line, true), |part| (part, false))
        };
        said += part;
        if ends {
            break;
        }
        said.push('\n');
        within(&said, most)?;
        line = match lines.line(true)? {
            Line::Text(line) => line,
            Line::Interrupted => return Ok(Turn::Nothing),
            Line::End => return Ok(Turn::Unfinished),
        };
    }
    if quoted {
        // Quotation marks on lines of their own are no part of the message.
        let text = said.strip_prefix('\n').unwrap_or(&said);
        said = text.strip_suffix('\n').unwrap_or(text).to_owned();
    }
    Ok(if said.trim().is_empty() { Turn::Nothing } else { Turn::Said(said) })
}

fn within(said: &str, most: usize) -> Result<()> {
    match said.len() > most {
        true => bail!("a message has more than the {} of text that are read", ByteSize(most as u64)),
        false => Ok(()),
    }
}

/// Standard input as it is.
#[derive(Default)]
pub(super) struct Piped {
    read: usize,
}

impl Lines for Piped {
    fn line(&mut self, _inside: bool) -> Result<Line> {
        self.read += 1;
        let line = format!("line {} of standard input", self.read);
        next_line(&mut stdin().lock(), MOST_PROMPT, &line)
    }
}

/// The next line, of so many bytes at most; `name` is what it is called in errors.
fn next_line(from: &mut impl BufRead, most: u64, name: &str) -> Result<Line> {
    let mut line = vec![];
    let read = from.take(most + 1).read_until(b'\n', &mut line);
    if read.with_context(|| format!("{name} cannot be read"))? == 0 {
        return Ok(Line::End);
    }
    if line.len() as u64 > most {
        bail!("{name} has more than the {} of text that are read", ByteSize(most));
    }
    if line.pop_if(|end| *end == b'\n').is_some() {
        line.pop_if(|end| *end == b'\r');
    }
    let text =
        String::from_utf8(line).map_err(|_| anyhow!("{name} is no text in UTF-8: convert it to UTF-8 first"));
    Ok(Line::Text(text?))
}

/// Lines that are typed, with a history that outlives the program.
pub(super) struct Terminal {
    editor: Editor<(), DefaultHistory>,
    history: Option<PathBuf>,
}

impl Terminal {
    /// Without a place for a history there is one while the program runs.
    pub(super) fn new(history: Result<PathBuf>) -> Result<Terminal> {
        // Only answers go to a standard output that is no terminal.
        let behavior = if stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().max_history_size(1000)?.behavior(behavior).build();
        let mut editor = Editor::with_config(config).context("the terminal cannot be used")?;
        let history = history.ok();
        if let Some(path) = history.as_ref().filter(|path| path.exists())
            && let Err(error) = editor.load_history(path)
        {
            warn(format_args!("{} cannot be read: {error}", path.display()));
        }
        Ok(Terminal { editor, history })
    }

    /// Adds a turn to the history.
    pub(super) fn remember(&mut self, said: &str) {
        let added = self.editor.add_history_entry(said).unwrap_or(false);
        let Some(path) = self.history.as_ref().filter(|_| added) else { return };
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let saved = folder.map_err(ReadlineError::from).and_then(|()| self.editor.append_history(path));
        if let Err(error) = saved {
            warn(format_args!("the history cannot be kept in {}: {error}", path.display()));
            self.history = None;
        }
    }
}

impl Lines for Terminal {
    fn line(&mut self, inside: bool) -> Result<Line> {
        match self.editor.readline(if inside { ". " } else { "> " }) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            // A key of a terminal of another encoding, or a paste of anything, costs no conversation.
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                warn("what was typed is no text in UTF-8, and the line up to there is given up");
                Ok(Line::Interrupted)
            }
            Err(error) => Err(error).context("the terminal cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Script(Vec<&'static str>);

    impl Lines for Script {
        fn line(&mut self, _: bool) -> Result<Line> {
            if self.0.is_empty() {
                return Ok(Line::End);
            }
            Ok(match self.0.remove(0) {
                "^C" => Line::Interrupted,
                line => Line::Text(line.to_owned()),
            })
        }
    }

    fn turns(lines: &[&'static str]) -> Vec<Turn> {
        let mut script = Script(lines.to_vec());
        let mut turns = vec![];
        loop {
            turns.push(turn(&mut script).unwrap());
            if matches!(turns.last(), Some(Turn::End | Turn::Unfinished)) {
                return turns;
            }
        }
    }

    fn said(text: &str) -> Turn {
        Turn::Said(text.to_owned())
    }

    #[test]
    fn a_turn_is_a_line_or_several() {
        assert_eq!(turns(&["one", "", "  two "]), [said("one"), Turn::Nothing, said("  two "), Turn::End]);
        assert_eq!(
            turns(&["one \\", "two\\", "three", "four"]),
            [said("one \ntwo\nthree"), said("four"), Turn::End]
        );
        assert_eq!(
            turns(&["\"\"\"", "a \\", "", "b", "\"\"\"", "c"]),
            [said("a \\\n\nb"), said("c"), Turn::End]
        );
        assert_eq!(turns(&["\"\"\"a", "b\"\"\" "]), [said("a\nb"), Turn::End]);
        assert_eq!(turns(&["\"\"\"a\"\"\"", "\"\"\"\"\"\""]), [said("a"), Turn::Nothing, Turn::End]);
    }

    #[test]
    fn lines_of_a_pipe_are_text_of_some_length_at_most() {
        let lines = |bytes: &[u8]| -> Vec<String> {
            let mut from = bytes;
            let next = || match next_line(&mut from, 5, "line 7") {
                Ok(Line::Text(line)) => Some(line),
                Ok(_) => None,
                Err(error) => Some(format!("{error:#}")),
            };
            std::iter::from_fn(next).take(4).collect()
        };
        assert_eq!(lines(b"a\r\n\nb\r"), ["a", "", "b\r"]);
        assert_eq!(lines(b"1234\n"), ["1234"]);
        assert!(lines(b"123456")[0].starts_with("line 7 has more than the 5 B"));
        assert!(lines(b"a\xff")[0].starts_with("line 7 is no text in UTF-8"));
        // One that never ends.
        let endless = next_line(&mut std::io::BufReader::new(std::io::repeat(b'a')), 1 << 20, "it");
        assert!(endless.is_err_and(|e| e.to_string().contains("1.0 MiB")));
        assert!(matches!(next_line(&mut &b""[..], 5, ""), Ok(Line::End)));
    }

    #[test]
    fn messages_of_many_lines_end_somewhere() {
        for (first, next) in [("a\\", "b\\"), (QUOTES, "some of it")] {
            struct Endless(&'static str, &'static str);
            impl Lines for Endless {
                fn line(&mut self, inside: bool) -> Result<Line> {
                    Ok(Line::Text(if inside { self.1 } else { self.0 }.to_owned()))
                }
            }
            let problem = bounded(&mut Endless(first, next), 1000).unwrap_err().to_string();
            assert!(problem.contains("a message has more than"), "{problem}");
        }
    }

    #[test]
    fn what_is_broken_off_is_given_up_and_what_ends_is_told() {
        assert_eq!(turns(&["^C", "a\\", "^C", "b"]), [Turn::Nothing, Turn::Nothing, said("b"), Turn::End]);
        assert_eq!(turns(&["\"\"\"", "a", "^C", "b"]), [Turn::Nothing, said("b"), Turn::End]);
        assert_eq!(turns(&["a\\"]), [Turn::Unfinished]);
        assert_eq!(turns(&["\"\"\"a", "b"]), [Turn::Unfinished]);
    }
}
