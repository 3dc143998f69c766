//! Qwen2 and Qwen2.5: Llama with biases on q, k and v.

use graph::Tensor;
use tensor::ops::Activation;

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
    head_dim: None,
    theta: 10_000.0,
};

struct Qwen2 {
    /// Per layer, for the window.
    attention: Vec<Attention>,
    mlp: GatedMlp,
}

/// `Qwen2Config`.
pub(crate) fn read(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let decoder = config.decoder(&DEFAULTS)?;
    let mut attention = config.attention(&decoder, &DEFAULTS)?;
    attention.qkv_bias = true;
    let attention = sliding_from(config, &decoder, attention)?;
    let mlp = config.gated_mlp("hidden_act", Activation::Silu)?;
    Ok((decoder, Box::new(Qwen2 { attention, mlp })))
}

/// The attention of each layer of Qwen2 and Qwen3: with `use_sliding_window`, the layers from `max_window_layers` on (or
/// those that `layer_types` names) see a window. GGUF files know no window.
pub(super) fn sliding_from(
    config: &Config,
    decoder: &Decoder,
    attention: Attention,
) -> Result<Vec<Attention>, ModelError> {
    let keys = &config.keys;
    let used = keys.flag(("use_sliding_window", ""))?.unwrap_or(false);
    let window = keys.nullable(("sliding_window", ""))?.unwrap_or(Some(4096)).filter(|_| used);
    let first = keys.whole(("max_window_layers", ""))?.unwrap_or(28);
    let slides = match config.sliding_layers(decoder.layers)? {
        Some(named) if window.is_none() && named.contains(&true) => {
            let known = "full_attention is, while use_sliding_window is not true or sliding_window is null";
            return Err(keys.unsupported(("layer_types", ""), "sliding_attention", known));
        }
        Some(named) => named,
        None => (0..decoder.layers).map(|layer| layer >= first).collect(),
    };
    let layer = |slides: bool| Attention { window: window.filter(|_| slides), ..attention.clone() };
    Ok(slides.into_iter().map(layer).collect())
}

impl Family for Qwen2 {
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
