//! Options that say how tokens are chosen, and when an output ends.

use anyhow::Result;
use clap::Args;
use gristmill::sampling::SamplingError;
use gristmill::{Generate, SamplingOptions};

use crate::args::{number, positive, whole};
use crate::error::Usage;

/// When an output ends, beside the end of the context.
#[derive(Args, Debug)]
pub(crate) struct EndArgs {
    /// Most tokens to generate; output also ends with the model's end of text, and when prompt and output fill the context
    #[arg(short = 'n', long, value_name = "N", value_parser = positive)]
    max_tokens: Option<usize>,
    /// End the output before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on past the model's end of text
    #[arg(long)]
    ignore_eos: bool,
}

impl EndArgs {
    /// How an output is generated whose tokens are chosen by `sampling`.
    pub(crate) fn resolve(self, sampling: SamplingOptions) -> Result<Generate> {
        let EndArgs { max_tokens, stop, ignore_eos } = self;
        if stop.iter().any(String::is_empty) {
            return Err(Usage::error("--stop needs text: an empty stop string would end every output"));
        }
        Ok(Generate { sampling, max_tokens, stop, ignore_end: ignore_eos })
    }
}

/// How tokens are chosen.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 takes the most probable token; higher is more varied
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number("--temperature 0.7"))]
    temperature: f32,
    /// Keep the K most probable tokens
    #[arg(long, value_name = "K", value_parser = whole::<usize>("--top-k 40"))]
    top_k: Option<usize>,
    /// Keep the most probable tokens that together reach probability P
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true, value_parser = number("--top-p 0.9"))]
    top_p: f32,
    /// Keep tokens at least P times as probable as the most probable
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number("--min-p 0.05"))]
    min_p: f32,
    /// Divide the positive logits of tokens seen in prompt or output, multiply the negative ones
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = number("--repetition-penalty 1.1"))]
    repetition_penalty: f32,
    /// Subtract from the logits of tokens seen in the output
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number("--presence-penalty 0.5"))]
    presence_penalty: f32,
    /// Subtract from the logits of tokens for each time they were in the output
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number("--frequency-penalty 0.5"))]
    frequency_penalty: f32,
    /// Add BIAS to the logit of token ID, `-inf` forbids it; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; the same seed gives the same text [default: another each time, told at the end]
    #[arg(long, value_name = "N", value_parser = whole::<u64>("--seed 1"))]
    seed: Option<u64>,
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "must be a token id, `=` and a number, as in `42=-1.5` or `42=-inf`".into())
}

impl SamplingArgs {
    /// The sampling options, refused before anything is loaded where a value is out of range.
    pub(crate) fn resolve(&self) -> Result<SamplingOptions> {
        let options = SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            ..SamplingOptions::default()
        };
        options.validate(usize::MAX).map_err(|error| {
            Usage::error(match error {
                SamplingError::Option { option, value, expected } => {
                    format!("--{} is {value}: {expected}", option.replace('_', "-"))
                }
                other => other.to_string(),
            })
        })?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::bias;

    #[test]
    fn biases_are_read() {
        assert_eq!(bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(bias("0=-inf"), Ok((0, f32::NEG_INFINITY)));
        assert!(bias("42").is_err() && bias("x=1").is_err() && bias("1=x").is_err() && bias("-1=1").is_err());
    }
}
