//! Continues a text, with draws that repeat: `cargo run --release --example generate -- MODEL "Once upon a time"`.

use std::error::Error;
use std::io::{Write, stdout};

use gristmill::{Generate, Llm, LoadOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: generate MODEL PROMPT".into());
    };
    run(&model, &prompt, &mut stdout().lock())
}

/// Continues a prompt.
pub(crate) fn run(model: &str, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut llm = Llm::load(model, &LoadOptions::default())?;
    // The seed makes the draws repeat; without a temperature the most probable token is taken each time.
    let options = Generate::default().max_tokens(64).temperature(0.8).seed(7).stop("\n\n");
    let text = llm.generate(prompt, &options)?.text()?;
    writeln!(out, "{prompt}{text}")?;
    Ok(())
}
