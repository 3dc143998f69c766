//! Several sequences at once, on shared steps: `cargo run --release --example several -- MODEL`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Write, stdout};

use gristmill::{Detokenizer, Event, Llm, LoadOptions, Request, SamplingOptions, Task, next_events};

const PROMPTS: [&str; 3] = ["The mill grinds", "Rivers run", "Once upon a time"];

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("usage: several MODEL")?;
    run(&model, &PROMPTS, &mut stdout().lock())
}

/// Continues all prompts together.
pub(crate) fn run(model: &str, prompts: &[&str], out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut llm = Llm::load(model, &LoadOptions::default().max_sequences(4))?;
    let tokenizer = llm.tokenizer().clone();
    let mut answers = BTreeMap::new();
    for prompt in prompts {
        let ids = llm.encode(prompt)?;
        let task = Task::Generate {
            max_tokens: Some(24),
            sampling: SamplingOptions::default(),
            // Of use where the options draw and name no seed.
            entropy: gristmill::fresh_seed(),
            stop: tokenizer.special().ends.clone(),
        };
        let id = llm.engine().submit(Request { prompt: ids, task })?;
        answers.insert(id, (*prompt, String::new(), Detokenizer::continuing(tokenizer.clone(), true)));
    }
    // Each round of events is a step, in which every sequence advances. None of them depends on the others.
    while let Some(events) = next_events(llm.engine()) {
        for event in events {
            let id = event.request();
            let Some((prompt, text, detokenizer)) = answers.get_mut(&id) else { continue };
            match event {
                Event::Token { token, .. } => text.push_str(detokenizer.push(token.id)),
                Event::Finished { reason, .. } => {
                    text.push_str(detokenizer.finish());
                    writeln!(out, "{prompt}{text}\n  {reason:?}")?;
                }
                Event::Failed { error, .. } => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}
