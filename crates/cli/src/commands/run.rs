//! `gristmill run`: one prompt, streamed.

use std::io::Write;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use gristmill::{Generate, Llm, Message, StopReason};

use crate::args::{LoadArgs, positive};
use crate::error::Usage;
use crate::output::{note, results};
use crate::resolve::describe;
use crate::sampling::SamplingArgs;

/// Answer a prompt, streamed
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The prompt, of one or more words; `-`, and none where standard input is not a terminal, reads standard input
    prompt: Vec<String>,
    /// Continue the prompt as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Most tokens to generate; output also ends with the model's end of text, and when prompt and output fill the context
    #[arg(short = 'n', long, value_name = "N", value_parser = positive)]
    max_tokens: Option<usize>,
    /// End the output before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on past the model's end of text
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command.
pub(crate) fn run(args: RunArgs) -> Result<()> {
    let mut sampling = args.sampling.resolve()?;
    if sampling.temperature > 0.0 {
        sampling.seed.get_or_insert_with(gristmill::fresh_seed);
    }
    if args.stop.iter().any(String::is_empty) {
        return Err(Usage::error("--stop needs text: an empty stop string would end every output"));
    }
    let prompt = (!args.prompt.is_empty()).then(|| args.prompt.join(" "));
    let prompt = super::text_argument(prompt, "the prompt")?;
    if prompt.trim().is_empty() && !args.raw {
        return Err(Usage::error(
            "the prompt is empty: say something, or let the model begin with --raw \"\"",
        ));
    }
    let mut llm = args.load.llm()?;
    describe(llm.engine());

    let ids = if args.raw {
        llm.encode(&prompt)?
    } else if llm.tokenizer().chat_template().is_some() {
        let system = args.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.chain([Message::new("user", &prompt)]).collect();
        llm.render(&messages)?
    } else if args.system.is_some() {
        bail!(
            "this model has no chat template, so there is no place for --system: write all into the prompt"
        );
    } else {
        note("this model has no chat template: it continues the prompt");
        llm.encode(&prompt)?
    };
    let generate =
        Generate { sampling, max_tokens: args.max_tokens, stop: args.stop, ignore_end: args.ignore_eos };
    stream(&mut llm, ids, &generate)
}

fn stream(llm: &mut Llm, ids: Vec<u32>, options: &Generate) -> Result<()> {
    let start = Instant::now();
    let mut first = None;
    let mut stdout = results();
    let mut generation = llm.generate_ids(ids, options)?;
    for piece in generation.by_ref() {
        first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        stdout.write_all(piece?.as_bytes())?;
        stdout.flush()?;
    }
    writeln!(stdout)?;
    if let Some(outcome) = generation.outcome() {
        let reason = match outcome.reason {
            StopReason::EndOfText => "the model ended its text",
            StopReason::StopString(_) => "stop string",
            StopReason::MaxTokens => "token limit reached",
            StopReason::ContextFull => "prompt and output fill the context",
            StopReason::Interrupted => "interrupted",
        };
        let seed = options.sampling.seed.map(|seed| format!("; seed {seed}")).unwrap_or_default();
        note(format_args!(
            "{} prompt tokens, {} generated in {:.2} s (first after {:.2} s); {reason}{seed}",
            outcome.prompt_tokens,
            outcome.generated.len(),
            start.elapsed().as_secs_f64(),
            first.unwrap_or_default(),
        ));
    }
    Ok(())
}
