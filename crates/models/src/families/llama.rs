//! Llama 1 to 3 and what is built like it; Mistral adds a sliding window.

use graph::Tensor;
use tensor::ops::Activation;

use crate::blocks::{Attention, GatedMlp};
use crate::decoder::{Config, Decoder, Defaults};
use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::keys::Key;
use crate::registry::Family;
use crate::step::Step;

const LLAMA: Defaults = Defaults {
    context: 2048,
    eps_key: "rms_norm_eps",
    eps: 1e-6,
    tied_keys: &["tie_word_embeddings"],
    tied: false,
    kv_heads: None,
    head_dim: None,
    theta: 10_000.0,
};

const MISTRAL: Defaults = Defaults { context: 131_072, kv_heads: Some(8), ..LLAMA };

/// Of GGUF files; in the other container `mistral` alone has it.
const WINDOW: Key = ("", "attention.sliding_window");

struct Llama {
    attention: Attention,
    mlp: GatedMlp,
}

/// `LlamaConfig`, and the `llama` of GGUF, which is also Mistral.
pub(crate) fn read(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let (decoder, mut llama) = shared(config, &LLAMA)?;
    let keys = &config.keys;
    config.attention_biases(&mut llama.attention)?;
    let mlp_bias = keys.flag(("mlp_bias", ""))?.unwrap_or(false);
    let gguf = keys.is_gguf();
    llama.mlp.in_bias = if gguf { config.has("blk.0.ffn_gate.bias") } else { mlp_bias };
    llama.mlp.out_bias = if gguf { config.has("blk.0.ffn_down.bias") } else { mlp_bias };
    llama.attention.window = keys.nullable(WINDOW)?.flatten();
    // Mixtral is a `llama` with experts.
    keys.only(("", "expert_count"), 0)?;
    keys.only(("", "expert_used_count"), 0)?;
    // The order of the rows in files made from the original weights is the same.
    keys.text(("", "tensor_data_layout"))?;
    Ok((decoder, Box::new(llama)))
}

/// `MistralConfig`.
pub(crate) fn read_mistral(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let (decoder, mut llama) = shared(config, &MISTRAL)?;
    llama.attention.window = config.keys.nullable(("sliding_window", ""))?.unwrap_or(Some(4096));
    Ok((decoder, Box::new(llama)))
}

fn shared(config: &Config, defaults: &Defaults) -> Result<(Decoder, Llama), ModelError> {
    let mut decoder = config.decoder(defaults)?;
    decoder.interleaved = true;
    let attention = config.attention(&decoder, defaults)?;
    let mlp = config.gated_mlp("hidden_act", Activation::Silu)?;
    Ok((decoder, Llama { attention, mlp }))
}

impl Family for Llama {
    fn layer(&self, s: &Step, layer: usize, x: Tensor) -> Tensor {
        let attention = |h| s.attention(layer, &self.attention, h);
        s.pre_norm(layer, x, attention, |h| s.gated_mlp(layer, &self.mlp, h))
    }

    fn write_gguf(&self, _: &Decoder, out: &mut GgufForm) -> Result<(), ModelError> {
        self.attention.write_gguf(out)?;
        if let Some(window) = self.attention.window {
            out.count(WINDOW, window);
        }
        self.mlp.write_gguf(Activation::Silu, out)
    }
}
