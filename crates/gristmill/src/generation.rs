//! A stream of text from one request.

use std::sync::Arc;

use engine::sampling::Sampled;
use engine::{Engine, Event, Finish, RequestId};
use text::{Detokenizer, StopStrings, Tokenizer};

use crate::block_on::next_events;
use crate::error::Error;

/// Why a generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// The model ended its text.
    EndOfText,
    /// A stop string appeared; it is the one of this index and is not part of the text.
    StopString(usize),
    /// The number of tokens asked for was reached.
    MaxTokens,
    /// Prompt and output are as many tokens as the context holds.
    ContextFull,
}

/// What a finished generation amounts to.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it ended.
    pub reason: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, an end-of-text token included.
    pub generated: Vec<Sampled>,
}

/// Iterates over pieces of text as they are generated. Dropping it cancels the request.
///
/// ```
/// use gristmill::{Generate, Llm, LoadOptions, StopReason};
///
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens-gguf/llama.gguf");
/// let mut llm = Llm::load(model, &LoadOptions::default())?;
/// let options = Generate { ignore_end: true, ..Generate::default() }.max_tokens(8).logprobs(3);
/// let mut answer = llm.generate("The mill grinds", &options)?;
/// for piece in answer.by_ref() {
///     print!("{}", piece?);
/// }
/// let outcome = answer.outcome().expect("the stream has ended");
/// assert_eq!((outcome.reason, outcome.generated.len()), (StopReason::MaxTokens, 8));
/// // Greedy: each token is the most probable.
/// for token in &outcome.generated {
///     let logprobs = token.logprobs.as_ref().expect("asked for");
///     assert_eq!((logprobs.top[0].0, logprobs.top.len()), (token.id, 3));
/// }
/// # Ok::<(), gristmill::Error>(())
/// ```
pub struct Generation<'e> {
    engine: &'e mut Engine,
    id: RequestId,
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    stops: Option<StopStrings>,
    prompt_tokens: usize,
    generated: Vec<Sampled>,
    reason: Option<StopReason>,
    failed: bool,
}

impl<'e> Generation<'e> {
    pub(crate) fn new(
        engine: &'e mut Engine,
        id: RequestId,
        tokenizer: Arc<Tokenizer>,
        stops: Option<StopStrings>,
        prompt_tokens: usize,
    ) -> Generation<'e> {
        let detokenizer = Detokenizer::continuing(tokenizer, true);
        let generated = vec![];
        Generation { engine, id, detokenizer, stops, prompt_tokens, generated, reason: None, failed: false }
    }

    /// The whole rest of the text.
    ///
    /// # Errors
    /// The request failed.
    pub fn text(mut self) -> Result<String, Error> {
        self.by_ref().collect()
    }

    /// The tokens generated so far, with their log-probabilities where [`engine::sampling::SamplingOptions::logprobs`] asks
    /// for them. Those whose text is part of a character, or may be of a stop string, are here before their text is.
    pub fn generated(&self) -> &[Sampled] {
        &self.generated
    }

    /// The result, once the stream has ended without an error.
    pub fn outcome(&self) -> Option<Outcome> {
        let reason = self.reason?;
        Some(Outcome { reason, prompt_tokens: self.prompt_tokens, generated: self.generated.clone() })
    }

    fn take(&mut self, event: Event, out: &mut String) -> Result<(), Error> {
        match event {
            Event::Token { id, token } if id == self.id => {
                let piece = self.detokenizer.push(token.id);
                match &mut self.stops {
                    Some(stops) => {
                        let (text, stopped) = stops.push(piece);
                        out.push_str(text);
                        if let Some(stopped) = stopped {
                            self.reason = Some(StopReason::StopString(stopped.index));
                            self.engine.cancel(self.id);
                        }
                    }
                    None => out.push_str(piece),
                }
                self.generated.push(token);
            }
            Event::Finished { id, reason } if id == self.id && self.reason.is_none() => {
                self.reason = Some(match reason {
                    Finish::Stop => StopReason::EndOfText,
                    Finish::MaxTokens => StopReason::MaxTokens,
                    Finish::ContextFull => StopReason::ContextFull,
                });
                let rest = self.detokenizer.finish();
                match &mut self.stops {
                    Some(stops) => {
                        let (text, stopped) = stops.push(rest);
                        out.push_str(text);
                        match stopped {
                            Some(stopped) => self.reason = Some(StopReason::StopString(stopped.index)),
                            None => out.push_str(stops.finish()),
                        }
                    }
                    None => out.push_str(rest),
                }
            }
            Event::Failed { id, error } if id == self.id => return Err(error.into()),
            _ => {}
        }
        Ok(())
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut out = String::new();
        while out.is_empty() {
            if self.reason.is_some() || self.failed {
                return None;
            }
            let Some(events) = next_events(self.engine) else {
                self.failed = true;
                return Some(Err(Error::Unanswered));
            };
            for event in events {
                if self.reason.is_some() {
                    break; // nothing after a stop string belongs to the text
                }
                if let Err(error) = self.take(event, &mut out) {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        Some(Ok(out))
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if self.reason.is_none() && !self.failed {
            self.engine.cancel(self.id);
        }
    }
}
