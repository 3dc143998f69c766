//! What an engine is configured with.

use std::ops::Range;
use std::sync::Arc;

use graph::backend::{Backend, KvType, Precision};
use models::ModelInfo;

use crate::error::EngineError;

/// Most sequences that run together.
pub const MAX_SEQUENCES: usize = 1024;

/// The most rows that [`EngineOptions::chunk`] may ask for: a step's activations are allocated for all of them.
pub const MAX_CHUNK: usize = 8192;

/// The most tokens that [`EngineOptions::context`] may ask for: positions are counted in 32 bits.
pub const MAX_CONTEXT: usize = 1 << 30;

/// Configuration of an [`crate::Engine`]. The default suits one user at a terminal.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Kernel class; `None` is fast for quantised checkpoints, exact for the others.
    pub precision: Option<Precision>,
    /// How keys and values are kept; `None` is f32 for exact kernels and f16 for fast ones. With q8_0 a cache takes about half
    /// of f16's memory, and answers change a little. Not every device has every type: see
    /// [`Backend::kv_types`].
    pub kv_type: Option<KvType>,
    /// Most tokens a sequence may have, prompt and output together, at most [`MAX_CONTEXT`]; `None` is the trained length,
    /// or what fits. Output ends with [`crate::Finish::ContextFull`] when prompt and output are that many.
    pub context: Option<usize>,
    /// Sequences that may be active at once.
    pub max_sequences: usize,
    /// Most rows in one step, at most [`MAX_CHUNK`]: the chunk size of prefill.
    pub chunk: usize,
    /// Most bytes for KV cache and recurrent states; `None` is what the device has left.
    pub cache_bytes: Option<u64>,
    /// Record the hidden state after every layer (for checks against goldens).
    pub taps: bool,
    /// Report the logits that each token is drawn from, as [`crate::Event::Scores`] before the token.
    pub logits: bool,
    /// Draw tokens on the device where a request's options allow it, and submit a step before the tokens of the one before
    /// it are read; `None` is what the device is best at. It changes no token.
    pub run_ahead: Option<bool>,
    /// Layers of each device, where several share the model; `None` divides them evenly.
    pub layers: Option<Vec<usize>>,
    /// Time the kernels of every step, where the device can: [`crate::Engine::take_profiles`].
    pub profile: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            precision: None,
            kv_type: None,
            context: None,
            max_sequences: 8,
            chunk: 512,
            cache_bytes: None,
            taps: false,
            logits: false,
            run_ahead: None,
            layers: None,
            profile: false,
        }
    }
}

impl EngineOptions {
    /// The kernel class for a model: the one asked for, else fast for a quantised checkpoint and exact for any other.
    pub fn precision_for(&self, info: &ModelInfo) -> Precision {
        let default = if info.quantised { Precision::Fast } else { Precision::Exact };
        self.precision.unwrap_or(default)
    }

    /// The type of keys and values for a model: the one asked for, else the one of its kernel class.
    pub fn kv_type_for(&self, info: &ModelInfo) -> KvType {
        let default = match self.precision_for(info) {
            Precision::Fast => KvType::F16,
            Precision::Exact => KvType::F32,
        };
        self.kv_type.unwrap_or(default)
    }

    /// That every device which keeps some of a model's keys and values can keep them as they are to be.
    pub(crate) fn check_kv_type(
        &self,
        info: &ModelInfo,
        stages: &[Range<usize>],
        devices: &[Arc<dyn Backend>],
    ) -> Result<(), EngineError> {
        let kv_type = self.kv_type_for(info);
        for (layers, device) in stages.iter().zip(devices) {
            let keeps = info.kv.iter().any(|kv| layers.contains(&kv.layer));
            if keeps && !device.kv_types().contains(&kv_type) {
                let has: Vec<&str> = device.kv_types().iter().map(|kv| kv.name()).collect();
                let (name, has) = (device.name(), has.join(" or "));
                let problem = format!(
                    "{name} has no kernels for a KV cache of {kv_type}; choose {has}, or a device that has it, as cpu does"
                );
                return Err(EngineError::Option { option: "kv_type", problem });
            }
        }
        Ok(())
    }

    /// The layers of each of so many devices.
    pub(crate) fn stages(&self, devices: usize, layers: usize) -> Result<Vec<Range<usize>>, EngineError> {
        let bad = |problem: String| Err(EngineError::Option { option: "layers", problem });
        if devices == 0 || devices > layers.max(1) {
            return bad(format!("{devices} devices cannot share the {layers} layers of this model"));
        }
        let even = || (0..devices).map(|i| layers * (i + 1) / devices - layers * i / devices).collect();
        let counts: Vec<usize> = self.layers.clone().unwrap_or_else(even);
        let sum = counts.iter().fold(0, |sum: usize, n| sum.saturating_add(*n));
        if counts.len() != devices || sum != layers || devices > 1 && counts.contains(&0) {
            return bad(format!(
                "{counts:?} are not the layers of {devices} devices: at least one for each, {layers} in all"
            ));
        }
        let mut start = 0;
        let range = |n| {
            start += n;
            start - n..start
        };
        Ok(counts.into_iter().map(range).collect())
    }

    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        let within = |option: &'static str, value: usize, most: usize, unit: &str| match value {
            1.. if value <= most => Ok(()),
            _ => {
                let problem = format!("is {value}, it must be between 1 and {most} {unit}");
                Err(EngineError::Option { option, problem })
            }
        };
        within("max_sequences", self.max_sequences, MAX_SEQUENCES, "sequences")?;
        within("chunk", self.chunk, MAX_CHUNK, "tokens")?;
        within("context", self.context.unwrap_or(1), MAX_CONTEXT, "tokens")
    }
}
