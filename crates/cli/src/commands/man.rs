//! `gristmill man`: pages of the manual.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Command};
use clap_mangen::Man;

use crate::error::Usage;
use crate::help::{self, ENVIRONMENT, EXIT_CODES, Example};
use crate::output::{note, results};
use crate::whole::write_bytes;

/// Print the manual, a page for each command
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The command whose page is printed [default: the page of the whole program]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
    /// Write all pages into this folder instead, as `gristmill.1`, `gristmill-run.1` and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let mut whole = help::command().disable_help_subcommand(true);
    whole.build();
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("the folder {} cannot be made", dir.display()))?;
        let commands: Vec<&Command> = std::iter::once(&whole).chain(whole.get_subcommands()).collect();
        for command in &commands {
            let path = dir.join(format!("{}.1", page_name(command)));
            write_bytes(&path, &page(command)?)?;
        }
        note(format_args!("{} pages written into {}", commands.len(), dir.display()));
        return Ok(());
    }
    let command = match &args.command {
        None => &whole,
        Some(name) => whole.find_subcommand(name).ok_or_else(|| {
            let names: Vec<&str> = whole.get_subcommands().map(Command::get_name).collect();
            Usage::error(format!("there is no command `{name}`; there are {}", names.join(", ")))
        })?,
    };
    let mut out = results();
    out.write_all(&page(command)?)?;
    Ok(out.flush()?)
}

/// `gristmill`, `gristmill-run`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// The page of a command in roff.
fn page(command: &Command) -> Result<Vec<u8>> {
    let whole = command.get_subcommands().next().is_some();
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone()).manual("Gristmill manual").source(format!("gristmill {version}"));
    let mut page = vec![];
    let render = |page: &mut Vec<u8>| {
        man.render_title(page)?;
        man.render_name_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
        if whole { man.render_subcommands_section(page) } else { Ok(()) }
    };
    render(&mut page).map_err(|e: std::io::Error| anyhow!("the page cannot be made: {e}"))?;
    let examples = if whole { help::FIRST } else { help::examples(command.get_name()) };
    page.extend(section("EXAMPLES", examples.iter().map(|(line, what): &Example| (*line, *what))).bytes());
    if whole {
        page.extend(section("ENVIRONMENT", ENVIRONMENT).bytes());
    }
    let codes = EXIT_CODES.map(|(code, what)| (code.to_string(), what));
    page.extend(section("EXIT STATUS", codes.iter().map(|(code, what)| (code.as_str(), *what))).bytes());
    Ok(page)
}

/// A section of terms, each with what it means.
fn section<'a>(title: &str, entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let entries =
        entries.into_iter().map(|(term, what)| format!(".TP\n\\fB{}\\fR\n{}\n", roff(term), roff(what)));
    format!(
        ".SH {}\n{}",
        if title.contains(' ') { format!("\"{title}\"") } else { title.to_owned() },
        entries.collect::<String>()
    )
}

/// Text as roff means it literally.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('~', "\\(ti");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}
