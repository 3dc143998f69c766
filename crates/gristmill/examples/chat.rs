//! A conversation at the terminal: `cargo run --release --example chat -- MODEL`. An empty line ends it.

use std::io::{BufRead, Write};

use gristmill::{Chat, Generate, Llm, LoadOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(model) = std::env::args().nth(1) else { return Err("usage: chat MODEL".into()) };
    let mut llm = Llm::load(model, &LoadOptions::default())?;
    let mut chat = Chat::new(&mut llm)?;
    let (mut lines, mut out) = (std::io::stdin().lock().lines(), std::io::stdout());
    loop {
        write!(out, "> ")?;
        out.flush()?;
        let Some(question) = lines.next().transpose()?.filter(|line| !line.is_empty()) else { break };
        for piece in chat.say(question, &Generate::default())? {
            write!(out, "{}", piece?)?;
            out.flush()?;
        }
        writeln!(out)?;
    }
    let stats = chat.stats();
    eprintln!("{} prompt tokens computed, {} taken from the cache", stats.computed, stats.reused);
    Ok(())
}
