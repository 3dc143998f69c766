//! `gristmill chat`: a conversation, computed once.

mod command;
mod input;
mod settings;
mod talk;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use gristmill::Chat;

use self::input::{Piped, Terminal, Turn};
use self::talk::{Next, Talk};
use crate::args::LoadArgs;
use crate::fetch::store::Store;
use crate::output::{note, warn};
use crate::resolve::{at, describe};
use crate::sampling::{EndArgs, SamplingArgs};

/// Talk with a model: each turn computes what is new in it
///
/// At a terminal `/help` tells the commands; Ctrl-C ends an answer, Ctrl-D leaves. A standard input that is no terminal is read
/// line by line, each a turn or a command: answers alone go to standard output.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    /// System message of the chat
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Go on with a conversation that `/save` wrote
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    #[command(flatten)]
    end: EndArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// File of the cache folder with what was typed.
const HISTORY: &str = "chat-history";

/// Runs the command.
pub(crate) fn run(args: ChatArgs) -> Result<()> {
    let options = args.end.resolve(args.sampling.resolve()?)?;
    let (path, mut llm) = args.load.llm()?;
    describe(llm.engine());
    let chat = Chat::new(&mut llm).map_err(|error| at(&path, error))?;
    let mut talk = Talk::new(chat, options);
    if let Some(path) = &args.session {
        talk.load(path)?;
    }
    if args.system.is_some() {
        talk.chat.set_system(args.system.as_deref());
    }
    if std::io::stdin().is_terminal() {
        at_terminal(&mut talk, args.load.model.cache_dir.as_deref())
    } else {
        piped(&mut talk)
    }
}

fn at_terminal(talk: &mut Talk, cache_dir: Option<&Path>) -> Result<()> {
    let raised = talk.interrupt.clone();
    // While a line is typed, Ctrl-C is a key.
    if let Err(error) = ctrlc::set_handler(move || raised.raise()) {
        warn(format_args!("Ctrl-C will end the program, not the answer: {error}"));
    }
    let history = Store::new(cache_dir).map(|store| store.dir.join(HISTORY));
    let mut lines = Terminal::new(history)?;
    note("/help tells the commands; Ctrl-C ends an answer, Ctrl-D leaves");
    loop {
        match input::turn(&mut lines)? {
            Turn::Said(text) => {
                lines.remember(&text);
                match talk.turn(&text) {
                    Ok(Next::Go) => {}
                    Ok(Next::Quit) => return Ok(()),
                    Err(mistake) => mistake.tell()?,
                }
            }
            Turn::Nothing => {}
            Turn::End | Turn::Unfinished => return Ok(()),
        }
    }
}

/// Mistakes are told and the rest goes on; the exit code tells of them.
fn piped(talk: &mut Talk) -> Result<()> {
    let mut lines = Piped::default();
    let mut mistakes = 0;
    loop {
        match input::turn(&mut lines)? {
            Turn::Said(text) => match talk.turn(&text) {
                Ok(Next::Go) => {}
                Ok(Next::Quit) => break,
                Err(mistake) => {
                    mistake.tell()?;
                    mistakes += 1;
                }
            },
            Turn::Nothing => {}
            Turn::End => break,
            Turn::Unfinished => bail!("the input ends inside a message: {} is missing", input::QUOTES),
        }
    }
    match mistakes {
        0 => Ok(()),
        1 => bail!("one line of the input was not followed, as told above"),
        n => bail!("{n} lines of the input were not followed, as told above"),
    }
}
