//! A sampler of one's own: `cargo run --release --example sampler -- MODEL "The mill"`.
//!
//! It draws from the two most probable tokens, with the more probable one three times out of four, and ends lines after
//! twelve tokens.

use std::error::Error;
use std::io::{Write, stdout};

use gristmill::sampling::{CustomSampler, Draw, Seen};
use gristmill::{Generate, Llm, LoadOptions};

/// What the sampler remembers of its request.
struct Two {
    newline: Option<u32>,
    in_line: usize,
}

impl CustomSampler for Two {
    fn sample(&mut self, logits: &mut [f32], seen: &Seen<'_>) -> Result<Draw, String> {
        self.in_line += 1;
        if let Some(newline) = self.newline.filter(|_| self.in_line > 12) {
            self.in_line = 0;
            return Ok(Draw::Token(newline));
        }
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        // Ties go to the lower id, so that the choice is the same everywhere.
        ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        // The number is the request's own, by its seed and this position: answers repeat.
        let first = seen.random < u32::MAX / 4 * 3;
        ids.get(usize::from(!first)).map(|id| Draw::Token(*id)).ok_or("the vocabulary has one token".into())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: sampler MODEL PROMPT".into());
    };
    run(&model, &prompt, &mut stdout().lock())
}

/// Continues a prompt with the sampler.
pub(crate) fn run(model: &str, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let mut llm = Llm::load(model, &LoadOptions::default())?;
    let newline = llm.encode("\n")?.last().copied();
    let options = Generate::default().max_tokens(32).seed(7).sampler(move || Two { newline, in_line: 0 });
    let text = llm.generate(prompt, &options)?.text()?;
    writeln!(out, "{prompt}{text}")?;
    Ok(())
}
