//! `gristmill chat`: a conversation, computed once.

mod command;
mod input;
mod settings;
mod talk;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use gristmill::{Chat, KvType};

use self::input::{Piped, Terminal, Turn};
use self::talk::{Next, Talk, is_new, quoted};
use crate::args::LoadArgs;
use crate::error::told;
use crate::fetch::store::Store;
use crate::output::{error, note, warn};
use crate::resolve::{at, describe, precision_name};
use crate::sampling::{EndArgs, SamplingArgs};
use crate::whole::folder_of;

/// Talk with a model: each turn computes what is new in it
///
/// At a terminal `/help` tells the commands; Ctrl-C ends an answer, Ctrl-D leaves. A standard input that is no terminal is read
/// line by line, each a turn or a command: answers alone go to standard output.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    /// System message of the chat
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// File of the conversation: it goes on where the file is there, and is saved there on leaving
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
    if let Some(path) = args.session.as_deref().filter(|path| is_new(path)) {
        // Told before there is a conversation that could not be saved.
        folder_of(path).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    let (path, mut llm) = args.load.llm()?;
    describe(&path, llm.engine());
    if llm.tokenizer().chat_template().is_none() {
        let model = quoted(args.load.model.model.as_deref().unwrap_or(&path).as_os_str());
        bail!(
            "{}: this model has no chat template, as base models have none: `gristmill run -m {model} \"Once upon a time\"` \
             has it continue a text; for a conversation take a model that was trained for it, often called instruct or chat",
            path.display()
        );
    }
    let chat = Chat::new(&mut llm).map_err(|error| at(&path, error))?;
    let mut talk = Talk::new(chat, options, resume(&args.load));
    if let Some(path) = &args.session {
        talk.keep_in(path)?;
    }
    if args.system.is_some() {
        talk.chat.set_system(args.system.as_deref());
    }
    let typed = std::io::stdin().is_terminal();
    let ended = match typed {
        true => at_terminal(&mut talk, args.load.model.cache_dir.as_deref()),
        false => piped(&mut talk),
    };
    // However it ends, what was said is saved.
    match (ended, talk.leave(typed)) {
        (Err(ended), Err(left)) => {
            error(told(&left));
            Err(ended)
        }
        (ended, left) => ended.and(left),
    }
}

/// The command line that goes on with a conversation, less its file: of what states depend on, all that was given.
fn resume(load: &LoadArgs) -> String {
    let mut line = "gristmill chat".to_owned();
    let mut add = |flag: &str, value: Option<OsString>| {
        if let Some(value) = value {
            line += &format!(" {flag} {}", quoted(&value));
        }
    };
    add("-m", load.model.model.clone().map(PathBuf::into_os_string));
    add("--cache-dir", load.model.cache_dir.clone().map(PathBuf::into_os_string));
    add("--device", Some(load.device.device.clone().into()).filter(|device| device != "cpu"));
    add("--precision", load.step.precision.map(|p| precision_name(p.into()).into()));
    add("--kv-type", load.step.kv_type.map(|kv| KvType::from(kv).name().into()));
    add("-c", load.cache.context.map(|n| n.to_string().into()));
    add("--kv-memory", load.cache.kv_memory.map(|n| n.to_string().into()));
    line + " --session"
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
