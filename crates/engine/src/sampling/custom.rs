//! Samplers of the caller's own.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::SamplingError;

/// Chooses the tokens of one request, or changes the logits that the policy chooses from.
///
/// [`CustomSampling`] makes one for each request. It is asked once for each token of the output, in order, on the thread
/// that polls the engine, whatever other requests share the step and however often the request was set back.
///
/// **Determinism.** A request's tokens depend on the request alone as long as the sampler decides by what it is given and
/// by what it remembers of this request. For randomness it uses [`Seen::random`], which depends on the seed and the position
/// only; a clock, a generator of its own or anything that requests share makes answers differ from run to run.
///
/// A panic of it fails its request, as an error does, and no other.
///
/// A closure `FnMut(&mut [f32], &Seen) -> Result<Draw, String>` is a sampler.
pub trait CustomSampler: Send {
    /// Chooses from a row of logits, one for each token of the vocabulary, all below +inf and none NaN; they may be changed
    /// for the policy to choose from, -inf forbids a token.
    ///
    /// # Errors
    /// Why the request cannot go on: it fails with this message.
    fn sample(&mut self, logits: &mut [f32], seen: &Seen<'_>) -> Result<Draw, String>;
}

impl<F: FnMut(&mut [f32], &Seen<'_>) -> Result<Draw, String> + Send> CustomSampler for F {
    fn sample(&mut self, logits: &mut [f32], seen: &Seen<'_>) -> Result<Draw, String> {
        self(logits, seen)
    }
}

/// What a custom sampler says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Draw {
    /// The next token is this one.
    Token(u32),
    /// The policy of [`super::SamplingOptions`] draws it from the logits as they are now.
    Policy,
}

/// What a custom sampler can decide by, beside the logits.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Seen<'a> {
    /// Tokens of prompt and output so far.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt: usize,
    /// A random number for this token, uniform over all values, by seed and position.
    pub random: u32,
}

type Make = dyn Fn() -> Box<dyn CustomSampler> + Send + Sync;

/// Makes a [`CustomSampler`] for each request.
#[derive(Clone)]
pub struct CustomSampling(Arc<Make>);

impl CustomSampling {
    /// Samplers that `make` gives, one for each request.
    pub fn new<S: CustomSampler + 'static>(make: impl Fn() -> S + Send + Sync + 'static) -> CustomSampling {
        CustomSampling(Arc::new(move || Box::new(make())))
    }
}

/// Equal are those of one origin.
impl PartialEq for CustomSampling {
    fn eq(&self, other: &CustomSampling) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for CustomSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomSampling")
    }
}

/// The custom sampler of one request, with the tokens it is shown.
pub(super) struct Custom {
    sampler: Box<dyn CustomSampler>,
    tokens: Vec<u32>,
    prompt: usize,
}

impl Custom {
    pub(super) fn new(sampling: &CustomSampling) -> Custom {
        Custom { sampler: sampling.0(), tokens: vec![], prompt: 0 }
    }

    /// Notes a token of the output, or of the prompt.
    pub(super) fn push(&mut self, id: u32, output: bool) {
        self.tokens.push(id);
        self.prompt += usize::from(!output);
    }

    pub(super) fn sample(&mut self, logits: &mut [f32], random: u32) -> Result<Draw, SamplingError> {
        let seen = Seen { tokens: &self.tokens, prompt: self.prompt, random };
        // Other requests share the step. A sampler that panicked is not asked again, so nobody sees what it broke.
        let asked = catch_unwind(AssertUnwindSafe(|| self.sampler.sample(logits, &seen)));
        let draw = asked.unwrap_or_else(|panic| Err(panicked(&*panic))).map_err(SamplingError::Custom)?;
        match draw {
            Draw::Token(id) if id as usize >= logits.len() => Err(SamplingError::Custom(format!(
                "it chose token {id}, beyond the vocabulary of {} tokens",
                logits.len()
            ))),
            draw => Ok(draw),
        }
    }
}

fn panicked(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    match text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)) {
        Some(text) => format!("it panicked: {text}"),
        None => "it panicked".to_owned(),
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}
