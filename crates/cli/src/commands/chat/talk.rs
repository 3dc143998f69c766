//! The conversation: turns and commands, answers on standard output, all else on standard error.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gristmill::parts::formats::Bytes;
use gristmill::{
    ByteSize, Chat, Content, EngineError, Error, Generate, Interrupt, Message, Reply, Resumption,
    SavedSession, StopReason,
};

use super::command::{self, Command};
use super::settings;
use crate::error::told;
use crate::output::{error, note, results, say, visible, warn};
use crate::whole::write_private;

/// What comes after a turn.
pub(super) enum Next {
    Go,
    Quit,
}

/// A turn that was not followed.
pub(super) enum Mistake {
    /// The conversation goes on.
    Told(String),
    /// The program ends.
    Fatal(anyhow::Error),
}

impl Mistake {
    /// Tells it; gives it back where the program must end.
    pub(super) fn tell(self) -> Result<()> {
        match self {
            Mistake::Told(problem) => {
                error(problem);
                Ok(())
            }
            Mistake::Fatal(error) => Err(error),
        }
    }
}

/// A conversation and how it is answered.
pub(super) struct Talk<'l> {
    pub(super) chat: Chat<'l>,
    pub(super) interrupt: Interrupt,
    options: Generate,
    /// The file that the conversation goes to on leaving.
    session: Option<PathBuf>,
    /// The messages when they were last loaded, or saved where they are kept.
    kept: Vec<Message>,
    /// The command line that goes on with a saved conversation, less its file.
    resume: String,
}

impl<'l> Talk<'l> {
    /// A conversation without a file; `resume` is the command line that loads one in place of it, less the file.
    pub(super) fn new(chat: Chat<'l>, options: Generate, resume: String) -> Talk<'l> {
        Talk { chat, interrupt: Interrupt::new(), options, session: None, kept: vec![], resume }
    }

    /// Gives the conversation a file: goes on with what is in it, or begins what will be.
    pub(super) fn keep_in(&mut self, path: &Path) -> Result<()> {
        if is_new(path) {
            note(format_args!(
                "{} is not there yet: a new conversation begins, and is saved there on leaving",
                path.display()
            ));
        } else {
            self.load(path)?;
        }
        self.session = Some(path.to_owned());
        Ok(())
    }

    /// Saves a conversation that has a file, if there is something new in it. Where it has none, that is told at a terminal.
    pub(super) fn leave(&mut self, typed: bool) -> Result<()> {
        let messages = self.chat.messages();
        let said = !self.kept.is_empty() || messages.iter().any(|message| message.role == "user");
        if !said || messages == self.kept {
            return Ok(());
        }
        match self.session.clone() {
            Some(path) => self.save(&path)?,
            None if typed => note(
                "what was said since the start or the last /save is not kept; `gristmill chat --session FILE` saves on leaving",
            ),
            None => {}
        }
        Ok(())
    }

    /// Follows a line: a command, or something that is said.
    pub(super) fn turn(&mut self, line: &str) -> Result<Next, Mistake> {
        let Some(command) = command::parse(line) else {
            self.answer(Some(command::text(line)))?;
            return Ok(Next::Go);
        };
        match command.map_err(Mistake::Told)? {
            Command::Help => say(command::help()),
            Command::System("") => match self.chat.system() {
                Some(text) => say(visible(text)),
                None => note("there is no system message"),
            },
            Command::System("none") => self.chat.set_system(None),
            Command::System(text) => self.chat.set_system(Some(text)),
            Command::Set("") => say(settings::list(&self.options)),
            Command::Set(text) => note(settings::set(&mut self.options, text).map_err(Mistake::Told)?),
            Command::Save(path) => self.save(Path::new(path)).map_err(|e| Mistake::Told(told(&e)))?,
            Command::Load(path) => self.change_to(Path::new(path)).map_err(|e| Mistake::Told(told(&e)))?,
            Command::Undo => match self.chat.undo() {
                Some(text) => note(format_args!("taken back: {text}")),
                None => return Err(Mistake::Told("there is nothing to take back".to_owned())),
            },
            Command::Retry => {
                if self.options.sampling.temperature == 0.0 {
                    note(
                        "at temperature 0 the answer is the same again: `/set temperature 0.7` makes it vary",
                    );
                }
                self.answer(None)?;
            }
            Command::Clear => self.chat.clear(),
            Command::History => {
                for message in self.chat.messages() {
                    if let Content::Text(text) = &message.content {
                        say(format_args!("\x1b[1m{}:\x1b[0m {}", visible(&message.role), visible(text)));
                    }
                }
            }
            Command::Stats => self.stats().map_err(|e| Mistake::Told(told(&e.into())))?,
            Command::Quit => return Ok(Next::Quit),
        }
        Ok(Next::Go)
    }

    /// Answers what is said, or the last question again.
    fn answer(&mut self, said: Option<&str>) -> Result<(), Mistake> {
        let (options, context) = (self.seeded(), self.context());
        self.interrupt.clear();
        let reply = match said {
            Some(text) => self.chat.say(text, &options),
            None => self.chat.retry(&options),
        };
        let reply = reply.map_err(|e| refused(e, context))?;
        print(reply.until(&self.interrupt), &options, context)
    }

    /// Goes on with a saved conversation in place of this one. Of those that have files each goes to its own.
    fn change_to(&mut self, path: &Path) -> Result<()> {
        self.leave(false)?;
        self.load(path)?;
        if let Some(session) = &mut self.session {
            path.clone_into(session);
        }
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let cannot = || format!("{} cannot be loaded", path.display());
        let bytes = Bytes::map(path).with_context(cannot)?;
        let resumption = self.chat.load(&bytes).map_err(anyhow::Error::from).with_context(cannot)?;
        self.kept = self.chat.messages().to_vec();
        match resumption {
            Resumption::Restored(tokens) => note(format_args!(
                "{}: {} messages, {tokens} tokens in the cache",
                path.display(),
                self.chat.messages().len()
            )),
            Resumption::Recomputed(why) => warn(format_args!(
                "{}: {} messages, which are computed again with the next turn: {why}",
                path.display(),
                self.chat.messages().len()
            )),
        }
        Ok(())
    }

    fn save(&mut self, path: &Path) -> Result<()> {
        if is_another(path) {
            bail!("{} is there and is no saved session: give another name", path.display());
        }
        let bytes = self.chat.save()?;
        write_private(path, &bytes)?;
        if self.session.as_deref().is_none_or(|session| session == path) {
            self.kept = self.chat.messages().to_vec();
        }
        note(format_args!(
            "{}: {} messages, {}; to go on with it: {} {}",
            path.display(),
            self.chat.messages().len(),
            ByteSize(bytes.len() as u64),
            self.resume,
            quoted(path.as_os_str())
        ));
        Ok(())
    }

    fn stats(&mut self) -> Result<(), Error> {
        let (stats, tokens, context) = (self.chat.stats(), self.chat.tokens()?, self.context());
        say(format_args!("context    {tokens} of {context} tokens"));
        say(format_args!(
            "prompts    {} tokens computed, {} taken from the cache",
            stats.computed, stats.reused
        ));
        say(format_args!("answers    {}, of {} tokens", stats.answers, stats.generated));
        Ok(())
    }

    fn context(&mut self) -> usize {
        self.chat.llm().engine().cache_size().context
    }

    /// The options of one answer: its seed can be told, and another answer has another.
    fn seeded(&self) -> Generate {
        let mut options = self.options.clone();
        if options.sampling.temperature > 0.0 {
            options.sampling.seed.get_or_insert_with(gristmill::fresh_seed);
        }
        options
    }
}

/// Whether a conversation of this file is yet to begin.
pub(super) fn is_new(path: &Path) -> bool {
    match path.metadata() {
        Ok(there) => there.is_file() && there.len() == 0,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// A word as shells read it.
pub(super) fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Whether a file is there, with something in it, that is no saved session.
fn is_another(path: &Path) -> bool {
    let mut start = vec![];
    let read = |file: File| file.take(SavedSession::MAGIC.len() as u64).read_to_end(&mut start);
    // Whoever opens a pipe waits for the other side.
    path.metadata().is_ok_and(|there| there.is_file())
        && File::open(path).and_then(read).is_ok_and(|n| n > 0)
        && start != SavedSession::MAGIC
}

/// What to do where the context is full.
const ROOM: &str = "nothing was dropped: /undo takes back a turn, /clear begins anew (/save FILE keeps this one), and \
                    -c/--context N is a larger context at the start";

/// Why nothing is answered.
fn refused(error: Error, context: usize) -> Mistake {
    Mistake::Told(match &error {
        Error::Engine(EngineError::PromptTooLong { prompt, .. }) => {
            format!("the conversation would have {prompt} tokens and the context holds {context}; {ROOM}")
        }
        Error::Engine(EngineError::NoRoomForOutput { .. }) => {
            format!(
                "the conversation would fill the context of {context} tokens and leave no room for an answer; {ROOM}"
            )
        }
        _ => told(&error.into()),
    })
}

/// Streams an answer and says what it was.
fn print(mut reply: Reply, options: &Generate, context: usize) -> Result<(), Mistake> {
    let (start, mut stdout, mut said) = (Instant::now(), results(), false);
    let mut failed = None;
    for piece in reply.by_ref() {
        match piece {
            Ok(piece) => {
                said |= !piece.is_empty();
                let written = stdout.write_all(piece.as_bytes()).and_then(|()| stdout.flush());
                written.map_err(|e| Mistake::Fatal(e.into()))?;
            }
            Err(error) => failed = Some(error),
        }
    }
    writeln!(stdout).map_err(|e| Mistake::Fatal(e.into()))?;
    if let Some(error) = failed {
        return Err(Mistake::Told(format!("{}; the question was taken back", told(&error.into()))));
    }
    let Some(outcome) = reply.outcome() else { return Ok(()) };
    let end = match outcome.reason {
        StopReason::EndOfText | StopReason::StopString(_) => "",
        StopReason::MaxTokens => "; token limit reached",
        StopReason::ContextFull => "; the context is full",
        StopReason::Interrupted if said => "; broken off",
        StopReason::Interrupted => "; broken off before the first word, the question was taken back",
        _ => "; ended",
    };
    let seed = options.sampling.seed.map(|seed| format!("; seed {seed}")).unwrap_or_default();
    note(format_args!(
        "{} prompt tokens, {} of them from the cache; {} generated in {:.2} s{end}{seed}",
        outcome.prompt_tokens,
        outcome.reused_tokens,
        outcome.generated.len(),
        start.elapsed().as_secs_f64(),
    ));
    if outcome.reason == StopReason::ContextFull {
        warn(format_args!(
            "conversation and answer fill the context of {context} tokens, the answer ends there; {ROOM}"
        ));
    }
    Ok(())
}
