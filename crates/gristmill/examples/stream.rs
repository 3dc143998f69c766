//! Streams an answer: `cargo run --release --example stream -- MODEL "Why is the sky blue?"`.

use std::io::Write;

use gristmill::{Generate, Llm, LoadOptions, Message};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(question)) = (args.next(), args.next()) else {
        return Err("usage: stream MODEL QUESTION".into());
    };
    let mut llm = Llm::load(model, &LoadOptions::default())?;
    for piece in llm.chat(&[Message::new("user", question)], &Generate::default())? {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
