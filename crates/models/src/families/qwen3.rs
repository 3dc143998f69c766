//! Qwen3: Llama with RMS norms on the heads of q and k.

use graph::Tensor;
use tensor::ops::Activation;

use super::qwen2::sliding_from;
use crate::blocks::{Attention, GatedMlp};
use crate::decoder::{Config, Decoder, Defaults};
use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::registry::Family;
use crate::step::Step;

const DEFAULTS: Defaults = Defaults {
    context: 32_768,
    eps_key: "rms_norm_eps",
    eps: 1e-6,
    tied_keys: &["tie_word_embeddings"],
    tied: false,
    kv_heads: Some(32),
    head_dim: Some(128),
    theta: 10_000.0,
};

struct Qwen3 {
    /// Per layer, for the window.
    attention: Vec<Attention>,
    mlp: GatedMlp,
}

/// `Qwen3Config`.
pub(crate) fn read(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let decoder = config.decoder(&DEFAULTS)?;
    let mut attention = config.attention(&decoder, &DEFAULTS)?;
    attention.qk_norm = true;
    config.attention_biases(&mut attention)?;
    let attention = sliding_from(config, &decoder, attention)?;
    let mlp = config.gated_mlp("hidden_act", Activation::Silu)?;
    Ok((decoder, Box::new(Qwen3 { attention, mlp })))
}

impl Family for Qwen3 {
    fn layer(&self, s: &Step, layer: usize, x: Tensor) -> Tensor {
        let attention = |h| s.attention(layer, &self.attention[layer], h);
        s.pre_norm(layer, x, attention, |h| s.gated_mlp(layer, &self.mlp, h))
    }

    fn write_gguf(&self, _: &Decoder, out: &mut GgufForm) -> Result<(), ModelError> {
        out.no_window(self.attention.iter().map(|a| &a.window))?;
        self.attention[0].write_gguf(out)?;
        self.mlp.write_gguf(Activation::Silu, out)
    }
}
