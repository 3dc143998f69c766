//! Streams an answer: `cargo run --release --example stream -- MODEL "Why is the sky blue?"`.

use std::error::Error;
use std::io::{Write, stdout};

use gristmill::{Generate, Llm, LoadOptions, Message};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(question)) = (args.next(), args.next()) else {
        return Err("usage: stream MODEL QUESTION".into());
    };
    run(&model, &question, &mut stdout().lock())
}

/// Answers a question, as a chat turn where the model has a template.
pub(crate) fn run(model: &str, question: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut llm = Llm::load(model, &LoadOptions::default())?;
    let options = Generate::default().max_tokens(128);
    let mut answer = match llm.tokenizer().chat_template() {
        Some(_) => llm.chat(&[Message::new("user", question)], &options)?,
        None => llm.generate(question, &options)?,
    };
    for piece in answer.by_ref() {
        write!(out, "{}", piece?)?;
        out.flush()?;
    }
    let outcome = answer.outcome().ok_or("the stream has not ended")?;
    writeln!(out, "\n{} tokens; {:?}", outcome.generated.len(), outcome.reason)?;
    Ok(())
}
