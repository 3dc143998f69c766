//! What an engine is configured with.

use graph::backend::Precision;
use models::ModelInfo;
use tensor::DType;

/// Configuration of an [`crate::Engine`]. The default suits one user at a terminal.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Kernel class and KV type; `None` is fast for quantised checkpoints, exact for the others.
    pub precision: Option<Precision>,
    /// Longest sequence in tokens, prompt and output together; `None` is the trained length, or what fits.
    pub context: Option<usize>,
    /// Sequences that may be active at once.
    pub max_sequences: usize,
    /// Most rows in one step: the chunk size of prefill.
    pub chunk: usize,
    /// Most bytes for KV cache and recurrent states; `None` is what the device has left.
    pub cache_bytes: Option<u64>,
    /// Record the hidden state after every layer (for checks against goldens).
    pub taps: bool,
    /// Report the logits that each token is drawn from, as [`crate::Event::Scores`] before the token.
    pub logits: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            precision: None,
            context: None,
            max_sequences: 8,
            chunk: 512,
            cache_bytes: None,
            taps: false,
            logits: false,
        }
    }
}

impl EngineOptions {
    /// The kernel class for a model: the one asked for, else fast for a quantised checkpoint and exact for any other.
    pub fn precision_for(&self, info: &ModelInfo) -> Precision {
        let default = if info.quantised { Precision::Fast } else { Precision::Exact };
        self.precision.unwrap_or(default)
    }

    /// The type of keys and values for a model.
    pub fn kv_dtype(&self, info: &ModelInfo) -> DType {
        match self.precision_for(info) {
            Precision::Fast => DType::F16,
            Precision::Exact => DType::F32,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), crate::EngineError> {
        let bad = |option: &'static str, problem: &'static str| {
            Err(crate::EngineError::Option { option, problem: problem.to_owned() })
        };
        if self.max_sequences == 0 || self.max_sequences > 1024 {
            return bad("max_sequences", "must be between 1 and 1024");
        }
        if self.chunk == 0 || self.chunk > 8192 {
            return bad("chunk", "must be between 1 and 8192 rows");
        }
        if self.context == Some(0) {
            return bad("context", "must be at least 1 token");
        }
        Ok(())
    }
}
