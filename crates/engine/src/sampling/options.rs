//! The sampling policy a caller asks for, and what is refused.

use super::{CustomSampling, SamplingError};

/// A step between penalties and draw. Each sees what the one before it kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Divides the logits by the temperature.
    Temperature,
    /// Keeps the k highest.
    TopK,
    /// Keeps the smallest set of the highest whose share of the probability reaches p, the crossing token included.
    TopP,
    /// Keeps what is at least min-p times as probable as the most probable.
    MinP,
}

impl Stage {
    /// The order of Hugging Face transformers: truncation sees the tempered distribution. The default.
    pub const TRANSFORMERS: [Stage; 4] = [Stage::Temperature, Stage::TopK, Stage::TopP, Stage::MinP];
    /// The order of llama.cpp: truncation sees the distribution at temperature 1.
    pub const LLAMA_CPP: [Stage; 4] = [Stage::TopK, Stage::TopP, Stage::MinP, Stage::Temperature];
}

/// A sampling policy. The default is greedy: temperature 0 and nothing else.
///
/// Write values of it with `..Default::default()`: fields will be added.
#[derive(Clone, PartialEq, Debug)]
pub struct SamplingOptions {
    /// 0 takes the highest logit (lowest id on a tie); else at least [`SamplingOptions::MIN_TEMPERATURE`].
    pub temperature: f32,
    /// Keep exactly this many tokens, at least 1 (all of a smaller vocabulary); `None` keeps all.
    pub top_k: Option<usize>,
    /// Nucleus share, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Share of the highest probability, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Above 0; a token seen in prompt or output has a positive logit divided by it, any other multiplied; 1 is off.
    pub repetition_penalty: f32,
    /// In [-2, 2]; subtracted once from the logit of a token seen in the output; 0 is off.
    pub presence_penalty: f32,
    /// In [-2, 2]; subtracted from the logit of a token once for each time it is in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Penalties look at this many of the last tokens (prompt and output together), at least 1; `None`: at all.
    pub penalty_last_n: Option<usize>,
    /// Added to the logits of these tokens before anything else; -inf forbids a token. Each id at most once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; `None` uses the entropy given to [`super::Sampler::new`].
    pub seed: Option<u64>,
    /// Each stage once, in the order to apply them.
    pub stages: [Stage; 4],
    /// Report the log-probability of the sampled token and of this many of the most probable, in the distribution of
    /// the logits as given; `None` reports none.
    pub logprobs: Option<usize>,
    /// A sampler of the caller's own, which sees each row before bias and penalties; it then draws the token itself, or
    /// leaves that to the policy above.
    pub custom: Option<CustomSampling>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        SamplingOptions {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: None,
            logit_bias: Vec::new(),
            seed: None,
            stages: Stage::TRANSFORMERS,
            logprobs: None,
            custom: None,
        }
    }
}

impl SamplingOptions {
    /// The smallest temperature that is not 0. Below it the policy is greedy in all but name, and ties would be
    /// settled by the draw instead of by id: ask for 0.
    pub const MIN_TEMPERATURE: f32 = 1e-3;

    /// Checks every option against its range for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// The first option out of range is named, with its value and its range. Nothing is clamped.
    pub fn validate(&self, vocab: usize) -> Result<(), SamplingError> {
        let check = |fine: bool, option, value: &dyn ToString, expected| {
            if fine {
                Ok(())
            } else {
                Err(SamplingError::Option { option, value: value.to_string(), expected })
            }
        };
        let t = self.temperature;
        check(
            t == 0.0 || (t >= Self::MIN_TEMPERATURE && t.is_finite()),
            "temperature",
            &t,
            "it must be 0 (greedy) or at least 0.001, and finite",
        )?;
        if let Some(k) = self.top_k {
            check(k >= 1, "top_k", &k, "it must be at least 1; leave it out to keep every token")?;
        }
        let p = self.top_p;
        check(p > 0.0 && p <= 1.0, "top_p", &p, "it must be above 0 and at most 1 (1 keeps every token)")?;
        let min_p = self.min_p;
        check((0.0..=1.0).contains(&min_p), "min_p", &min_p, "it must be from 0 (keeps every token) to 1")?;
        let repetition = self.repetition_penalty;
        check(
            repetition > 0.0 && repetition.is_finite(),
            "repetition_penalty",
            &repetition,
            "it must be above 0 and finite (1 is off)",
        )?;
        for (option, penalty) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check((-2.0..=2.0).contains(&penalty), option, &penalty, "it must be from -2 to 2 (0 is off)")?;
        }
        if let Some(n) = self.penalty_last_n {
            check(n >= 1, "penalty_last_n", &n, "it must be at least 1; leave it out to count every token")?;
        }
        let mut ids = Vec::with_capacity(self.logit_bias.len());
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                return Err(SamplingError::Id { place: "logit_bias", id, vocab });
            }
            check(
                bias < f32::INFINITY,
                "logit_bias",
                &bias,
                "a bias must be finite, or -inf to forbid the token",
            )?;
            ids.push(id);
        }
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            check(
                false,
                "logit_bias",
                &format!("given twice for token {}", pair[0]),
                "each token may be biased once",
            )?;
        }
        let once = Stage::TRANSFORMERS.iter().all(|stage| self.stages.contains(stage));
        check(once, "stages", &format!("{:?}", self.stages), "each of the four stages must be there once")?;
        if let Some(n) = self.logprobs {
            check(n <= vocab, "logprobs", &n, "it must be at most the size of the vocabulary")?;
        }
        Ok(())
    }

    /// Whether any penalty is on, and so whether history matters.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut SamplingOptions);

    #[test]
    fn defaults_and_the_ends_of_every_range_pass() {
        let fine: [Change; 14] = [
            |_| {},
            |o| o.temperature = 1e-3,
            |o| o.temperature = f32::MAX,
            |o| o.top_k = Some(1),
            |o| o.top_k = Some(1000),
            |o| o.top_p = f32::MIN_POSITIVE,
            |o| o.min_p = 1.0,
            |o| o.repetition_penalty = 0.5,
            |o| (o.presence_penalty, o.frequency_penalty) = (-2.0, 2.0),
            |o| o.penalty_last_n = Some(1),
            |o| o.logit_bias = vec![(9, -100.0), (0, f32::NEG_INFINITY)],
            |o| o.seed = Some(0),
            |o| o.stages = Stage::LLAMA_CPP,
            |o| o.logprobs = Some(10),
        ];
        for (case, change) in fine.iter().enumerate() {
            let mut options = SamplingOptions::default();
            change(&mut options);
            assert_eq!(options.validate(10), Ok(()), "case {case}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused: [(&str, Change); 27] = [
            ("temperature", |o| o.temperature = f32::NAN),
            ("temperature", |o| o.temperature = -1.0),
            ("temperature", |o| o.temperature = 9.99e-4),
            ("temperature", |o| o.temperature = f32::INFINITY),
            ("top_k", |o| o.top_k = Some(0)),
            ("top_p", |o| o.top_p = 0.0),
            ("top_p", |o| o.top_p = 1.000_001),
            ("top_p", |o| o.top_p = f32::NAN),
            ("top_p", |o| o.top_p = -0.5),
            ("min_p", |o| o.min_p = -0.1),
            ("min_p", |o| o.min_p = 1.1),
            ("min_p", |o| o.min_p = f32::NAN),
            ("repetition_penalty", |o| o.repetition_penalty = 0.0),
            ("repetition_penalty", |o| o.repetition_penalty = -1.0),
            ("repetition_penalty", |o| o.repetition_penalty = f32::NAN),
            ("repetition_penalty", |o| o.repetition_penalty = f32::INFINITY),
            ("presence_penalty", |o| o.presence_penalty = 2.1),
            ("presence_penalty", |o| o.presence_penalty = f32::NAN),
            ("frequency_penalty", |o| o.frequency_penalty = -2.1),
            ("frequency_penalty", |o| o.frequency_penalty = f32::NAN),
            ("penalty_last_n", |o| o.penalty_last_n = Some(0)),
            ("logit_bias", |o| o.logit_bias = vec![(1, f32::NAN)]),
            ("logit_bias", |o| o.logit_bias = vec![(1, f32::INFINITY)]),
            ("logit_bias", |o| o.logit_bias = vec![(10, 1.0)]),
            ("logit_bias", |o| o.logit_bias = vec![(1, 1.0), (2, 1.0), (1, 2.0)]),
            ("stages", |o| o.stages = [Stage::TopK, Stage::TopK, Stage::TopP, Stage::MinP]),
            ("logprobs", |o| o.logprobs = Some(11)),
        ];
        for (name, change) in refused {
            let mut options = SamplingOptions::default();
            change(&mut options);
            let message = options.validate(10).unwrap_err().to_string();
            assert!(message.starts_with(name), "{name}: {message}");
        }
    }
}
