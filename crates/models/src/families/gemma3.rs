//! Gemma 3, text: sandwich norms, q and k norms, sliding layers with a rotary base of their own.

use std::sync::Arc;

use graph::Tensor;
use serde_json::{Map, Value};
use tensor::ops::Activation;

use crate::blocks::{Attention, GatedMlp};
use crate::decoder::{Config, Decoder, Defaults};
use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::keys::{Key, Keys, Range};
use crate::registry::Family;
use crate::rope::{Beside, Rope, Scaling, read_theta};
use crate::step::Step;
use crate::weights::Names;

const DEFAULTS: Defaults = Defaults {
    context: 131_072,
    eps_key: "rms_norm_eps",
    eps: 1e-6,
    tied_keys: &["tie_word_embeddings"],
    tied: true,
    kv_heads: Some(4),
    head_dim: Some(256),
    theta: 1_000_000.0,
};

/// Rotary table of the sliding layers.
const LOCAL_PORT: &str = "rope_swa.inv_freq";

/// Rotary base of the sliding layers.
const LOCAL_THETA: f64 = 10_000.0;

const WINDOW: Key = ("sliding_window", "attention.sliding_window");
const PATTERN: Key = ("sliding_window_pattern", "attention.sliding_window_pattern");
const LOCAL_THETA_KEY: Key = ("rope_local_base_freq", "rope.freq_base_swa");
const SCALE_KEY: Key = ("", "attention.scale");
const OLD_TYPE: Key = ("type", "");
const NEW_TYPE: Key = ("rope_type", "");

const NAMES: Names = &[
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

struct Gemma3 {
    /// Per layer.
    attention: Vec<Attention>,
    mlp: GatedMlp,
}

/// `Gemma3TextConfig`.
pub(crate) fn read(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let keys = &config.keys;
    let mut decoder = config.decoder(&DEFAULTS)?;
    decoder.names = NAMES;
    decoder.embed_scale = (decoder.hidden as f64).sqrt() as f32;
    // transformers computes with 1 + w; a GGUF file holds the sum.
    decoder.plus_one = !keys.is_gguf();
    let rope = |dims| global_rope(keys, dims, decoder.context);
    let mut full = config.attention_of(&decoder, &DEFAULTS, config.heads(&DEFAULTS)?, rope)?;
    full.qk_norm = true;
    full.scale = score_scale(keys, &decoder, &full)?;
    config.attention_biases(&mut full)?;
    keys.never(("attn_logit_softcapping", "attn_logit_softcapping"))?;
    keys.never(("final_logit_softcapping", "final_logit_softcapping"))?;
    keys.only(("use_bidirectional_attention", ""), false)?;
    let slides = sliding(config, decoder.layers)?;
    let window = window(keys, slides.contains(&true))?;
    let rope = Arc::new(local_rope(keys, full.k_dim, decoder.context)?);
    let local = Attention { window, rope, ..full.clone() };
    let layer = |slides: bool| if slides { local.clone() } else { full.clone() };
    let attention = slides.into_iter().map(layer).collect();
    let mlp = config.gated_mlp("hidden_activation", Activation::GeluTanh)?;
    Ok((decoder, Box::new(Gemma3 { attention, mlp })))
}

/// The window of the sliding layers. Only without such layers may a file leave it out.
fn window(keys: &Keys, needed: bool) -> Result<Option<usize>, ModelError> {
    let key = WINDOW;
    match keys.nullable(key)? {
        None if keys.is_gguf() && needed => Err(keys.missing(key, "the window of the sliding layers")),
        Some(None) if needed => Err(keys.bad(key, "null", "a whole number from 1 on, as some layers slide")),
        given => Ok(given.unwrap_or(Some(4096))),
    }
}

/// The rotary table of the full layers, with the scaling if there is one.
fn global_rope(keys: &Keys, dims: usize, context: usize) -> Result<Rope, ModelError> {
    if keys.is_gguf() {
        return Rope::read(keys, dims, DEFAULTS.theta, context);
    }
    let theta = read_theta(keys, ("rope_theta", ""))?;
    let mut own = rope_parameters(keys, "full_attention")?;
    let old = keys.object(("rope_scaling", ""))?.unwrap_or_default();
    let within = Keys::within(&old, "rope_scaling");
    if let (true, None, Some(kind)) = (own.is_empty(), within.value(NEW_TYPE), within.value(OLD_TYPE)) {
        let known =
            "under the name `rope_type` it is: transformers 4 scales by either, transformers 5 by that alone";
        return Err(within.unsupported(OLD_TYPE, kind, known));
    }
    let path = if old.is_empty() { "rope_parameters.full_attention" } else { "rope_scaling" };
    own.extend(old);
    let default_theta = DEFAULTS.theta;
    let beside = Beside { theta, default_theta, context, original: None, nested: true };
    Rope::read_object(Keys::within(&own, path), "rope.inv_freq", dims, &beside)
}

/// The rotary table of the sliding layers, which no `rope_scaling` touches.
fn local_rope(keys: &Keys, dims: usize, context: usize) -> Result<Rope, ModelError> {
    let theta = read_theta(keys, LOCAL_THETA_KEY)?;
    let own = rope_parameters(keys, "sliding_attention")?;
    let own = Keys::within(&own, "rope_parameters.sliding_attention");
    let default_theta = LOCAL_THETA;
    let beside = Beside { theta, default_theta, context, original: None, nested: true };
    Rope::read_object(own, LOCAL_PORT, dims, &beside)
}

/// One of the two objects in `rope_parameters`; empty when it is not there.
fn rope_parameters(keys: &Keys, kind: &'static str) -> Result<Map<String, Value>, ModelError> {
    let Some(all) = keys.object(("rope_parameters", ""))? else { return Ok(Map::new()) };
    let within = Keys::within(&all, "rope_parameters");
    within.ignore(&["full_attention", "sliding_attention"]);
    let own = within.object((kind, ""))?;
    within.finish("gemma3")?;
    Ok(own.unwrap_or_default())
}

/// `query_pre_attn_scalar ^ -1/2`. GGUF files leave it out: it is the head's width but in the 27B model, the one of 62
/// layers, where it is hidden / heads (as llama.cpp infers it too).
fn score_scale(keys: &Keys, decoder: &Decoder, attention: &Attention) -> Result<f32, ModelError> {
    // Those of the configurations are about 0.06 to 1; these are what leaves scores that f32 can tell apart.
    const SCALE: Range = Range::new(1e-4, 1e2, "a number above 0 (from 0.0001 to 100)");
    const SCALAR: Range = Range::new(1e-4, 1e8, "a number above 0 (from 0.0001 to 1e8)");
    if let Some(scale) = keys.within_range(SCALE_KEY, &SCALE)? {
        return Ok(scale as f32);
    }
    let inferred = inferred_scalar(decoder, attention);
    let given = keys.within_range(("query_pre_attn_scalar", ""), &SCALAR)?;
    let scalar = given.unwrap_or(if keys.is_gguf() { inferred as f64 } else { 256.0 });
    Ok(scalar.powf(-0.5) as f32)
}

/// The scalar of a file that says nothing of it.
fn inferred_scalar(decoder: &Decoder, attention: &Attention) -> usize {
    match decoder.layers {
        62 => decoder.hidden / attention.heads,
        _ => attention.k_dim,
    }
}

/// Which layers slide: `layer_types`, or all but every sixth (or as the pattern says).
fn sliding(config: &Config, layers: usize) -> Result<Vec<bool>, ModelError> {
    let named = config.sliding_layers(layers)?;
    let key = PATTERN;
    config.keys.ignore(&["_sliding_window_pattern"]);
    let every = match config.keys.value(key) {
        // A GGUF file may list the layers.
        Some(Value::Array(list)) => {
            let list: Option<Vec<bool>> = list.iter().map(Value::as_bool).collect();
            let fits = list.filter(|l| l.len() == layers);
            return fits.ok_or_else(|| config.keys.bad(key, "another list", "true or false for each layer"));
        }
        _ => config.keys.count(key)?.unwrap_or(6),
    };
    Ok(named.unwrap_or_else(|| (1..=layers).map(|n| n % every != 0).collect()))
}

impl Family for Gemma3 {
    fn layer(&self, s: &Step, layer: usize, x: Tensor) -> Tensor {
        let norm = |name: &str, x| s.norm(&format!("blk.{layer}.{name}"), s.decoder.hidden, x);
        let attention = |h| norm("post_attention_norm", s.attention(layer, &self.attention[layer], h));
        s.pre_norm(layer, x, attention, |h| norm("post_ffw_norm", s.gated_mlp(layer, &self.mlp, h)))
    }

    fn write_gguf(&self, decoder: &Decoder, out: &mut GgufForm) -> Result<(), ModelError> {
        let slides: Vec<bool> = self.attention.iter().map(|a| a.rope.port == LOCAL_PORT).collect();
        let at = |slide: bool| slides.iter().position(|s| *s == slide).map(|at| &self.attention[at]);
        let (full, local) = (at(false), at(true));
        if let Some(any) = full.or(local) {
            any.write_gguf(out)?;
            if any.scale != (inferred_scalar(decoder, any) as f64).powf(-0.5) as f32 {
                out.float(SCALE_KEY, any.scale);
            }
        }
        if let Some(Attention { rope, window: Some(window), .. }) = local {
            if rope.scaling != Scaling::None || rope.limit.is_some() {
                return Err(out.none("a rotary scaling of the sliding layers"));
            }
            out.float(LOCAL_THETA_KEY, rope.theta as f32);
            out.count(WINDOW, *window);
        }
        // Every so many-th layer is full, or each is told.
        let first = slides.iter().position(|s| !s).map_or(slides.len() + 1, |at| at + 1);
        if slides.iter().enumerate().all(|(at, slides)| *slides == ((at + 1) % first != 0)) {
            out.count(PATTERN, first);
        } else {
            out.flags(PATTERN, slides);
        }
        self.mlp.write_gguf(Activation::GeluTanh, out)
    }
}
