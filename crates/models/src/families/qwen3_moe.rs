//! Qwen3 with a mixture of experts in some or all layers.

use graph::Tensor;
use tensor::ops::Activation;

use crate::blocks::{Attention, GatedMlp, Moe};
use crate::decoder::{Config, Decoder, Defaults, WIDTH};
use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::keys::Key;
use crate::registry::Family;
use crate::step::Step;

const DEFAULTS: Defaults = Defaults {
    context: 32_768,
    eps_key: "rms_norm_eps",
    eps: 1e-6,
    tied_keys: &["tie_word_embeddings"],
    tied: false,
    kv_heads: Some(4),
    head_dim: None,
    theta: 10_000.0,
};

const EXPERTS: Key = ("num_experts", "expert_count");
const CHOSEN: Key = ("num_experts_per_tok", "expert_used_count");
const EXPERT_WIDTH: Key = ("moe_intermediate_size", "expert_feed_forward_length");

struct Qwen3Moe {
    attention: Attention,
    ffn: Vec<Ffn>,
}

/// The feed-forward block of a layer.
enum Ffn {
    Dense(GatedMlp),
    Moe(Moe),
}

/// `Qwen3MoeConfig`.
pub(crate) fn read(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let keys = &config.keys;
    let decoder = config.decoder(&DEFAULTS)?;
    let mut attention = config.attention(&decoder, &DEFAULTS)?;
    attention.qk_norm = true;
    config.attention_biases(&mut attention)?;
    let slides = keys.flag(("use_sliding_window", ""))?.unwrap_or(false);
    let window = keys.nullable(("sliding_window", ""))?.unwrap_or(Some(4096));
    attention.window = window.filter(|_| slides);
    // Here all layers slide or none; the routing losses are for training.
    keys.ignore(&["max_window_layers", "output_router_logits", "router_aux_loss_coef"]);
    let activation = config.activation("hidden_act", Activation::Silu)?;
    let moe = experts(config, activation)?;
    let dense = match moe_layers(config, decoder.layers)? {
        layers if layers.iter().all(|moe| *moe) => {
            // The width of layers that are not there.
            keys.count(WIDTH)?;
            layers.into_iter().map(|_| Ffn::Moe(moe.clone())).collect()
        }
        layers => {
            let mlp = config.gated_mlp("hidden_act", Activation::Silu)?;
            let ffn = |routed: bool| if routed { Ffn::Moe(moe.clone()) } else { Ffn::Dense(mlp.clone()) };
            layers.into_iter().map(ffn).collect()
        }
    };
    Ok((decoder, Box::new(Qwen3Moe { attention, ffn: dense })))
}

fn experts(config: &Config, activation: Activation) -> Result<Moe, ModelError> {
    let keys = &config.keys;
    // transformers 5 writes the second name.
    let (key, new) = (EXPERTS, ("num_local_experts", ""));
    let (experts, other) = (config.extent(key)?, config.extent(new)?);
    if let (Some(experts), Some(other)) = (experts, other)
        && experts != other
    {
        return Err(keys.bad(new, other, &format!("{experts}, as `num_experts` says")));
    }
    let experts = match experts.or(other) {
        Some(experts) => experts,
        None => config.extent_or(key, 128)?,
    };
    let chosen_key = CHOSEN;
    let chosen = config.extent_or(chosen_key, 8)?;
    if chosen > experts {
        return Err(keys.bad(chosen_key, chosen, &format!("at most the number of experts, {experts}")));
    }
    let width = config.extent_or(EXPERT_WIDTH, 768)?;
    // llama.cpp always renormalises this family and so its files do not say it; transformers does not unless told.
    let renormalise = keys.flag(("norm_topk_prob", "expert_weights_norm"))?.unwrap_or(keys.is_gguf());
    keys.only(("", "expert_weights_scale"), 1.0)?;
    keys.only(("", "expert_shared_count"), 0)?;
    // 1 is softmax.
    keys.only(("", "expert_gating_func"), 1)?;
    Ok(Moe { experts, chosen, width, activation, renormalise })
}

/// Which layers have experts: every `decoder_sparse_step`-th but those of `mlp_only_layers`; in a GGUF file, those with a
/// router.
fn moe_layers(config: &Config, layers: usize) -> Result<Vec<bool>, ModelError> {
    let keys = &config.keys;
    if keys.is_gguf() {
        let routed = |layer| config.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
        return Ok((0..layers).map(routed).collect());
    }
    let every = keys.count(("decoder_sparse_step", ""))?.unwrap_or(1);
    let dense = keys.layers(("mlp_only_layers", ""), layers)?.unwrap_or_default();
    Ok((0..layers).map(|layer| (layer + 1) % every == 0 && !dense.contains(&layer)).collect())
}

impl Family for Qwen3Moe {
    fn layer(&self, s: &Step, layer: usize, x: Tensor) -> Tensor {
        let attention = |h| s.attention(layer, &self.attention, h);
        s.pre_norm(layer, x, attention, |h| match &self.ffn[layer] {
            Ffn::Dense(mlp) => s.gated_mlp(layer, mlp, h),
            Ffn::Moe(moe) => s.moe(layer, moe, h),
        })
    }

    fn write_gguf(&self, _: &Decoder, out: &mut GgufForm) -> Result<(), ModelError> {
        out.no_window([&self.attention.window])?;
        self.attention.write_gguf(out)?;
        let dense = self.ffn.iter().find_map(|ffn| if let Ffn::Dense(mlp) = ffn { Some(mlp) } else { None });
        let moe = self.ffn.iter().find_map(|ffn| if let Ffn::Moe(moe) = ffn { Some(moe) } else { None });
        if let Some(moe) = moe {
            // The engines that read the files divide whatever they say.
            if !moe.renormalise {
                return Err(out.none("`norm_topk_prob` = false"));
            }
            out.usual_activation(moe.activation, Activation::Silu)?;
            out.count(EXPERTS, moe.experts);
            out.count(CHOSEN, moe.chosen);
            out.count(EXPERT_WIDTH, moe.width);
            // Without dense layers it is still asked for.
            out.count(WIDTH, moe.width);
        }
        dense.map_or(Ok(()), |mlp| mlp.write_gguf(Activation::Silu, out))
    }
}
