//! LFM2: gated short convolutions, with attention in some layers.

use graph::Tensor;
use tensor::ops::Activation;

use crate::RingSpec;
use crate::blocks::{Attention, GatedMlp};
use crate::decoder::{Config, Decoder, Defaults};
use crate::error::ModelError;
use crate::registry::Family;
use crate::rope::Rope;
use crate::step::Step;
use crate::weights::{Names, Treatment};

const DEFAULTS: Defaults = Defaults {
    context: 128_000,
    eps_key: "norm_eps",
    eps: 1e-5,
    tied_keys: &["tie_embedding", "tie_word_embeddings"],
    tied: true,
    kv_heads: Some(8),
    head_dim: None,
    theta: 1_000_000.0,
};

const NAMES: Names = &[
    ("token_embd_norm", "model.embedding_norm"),
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
];

struct Lfm2 {
    /// Per layer; `None` where it convolves.
    attention: Vec<Option<Attention>>,
    conv: Conv,
    mlp: GatedMlp,
}

#[derive(Clone, Copy)]
struct Conv {
    /// Taps, the current row's included.
    length: usize,
    bias: bool,
}

/// `Lfm2Config`.
pub(crate) fn read(config: &Config) -> Result<(Decoder, Box<dyn Family>), ModelError> {
    let keys = &config.keys;
    let mut decoder = config.decoder(&DEFAULTS)?;
    decoder.names = NAMES;
    decoder.final_norm = "token_embd_norm";
    let heads = keys.need(("num_attention_heads", "attention.head_count"))?;
    let attention = kv_heads(config, &decoder)?.into_iter().map(|kv_heads| {
        let rope = |dims| Rope::read(keys, dims, DEFAULTS.theta, decoder.context);
        let of = |kv| config.attention_of(&decoder, &DEFAULTS, [heads, kv], rope);
        Ok(kv_heads.map(of).transpose()?.map(|a| Attention { qk_norm: true, ..a }))
    });
    let attention = attention.collect::<Result<_, ModelError>>()?;
    let length_key = ("conv_L_cache", "shortconv.l_cache");
    let length = match keys.count(length_key)? {
        None if keys.is_gguf() => keys.need(length_key)?,
        given => given.unwrap_or(3),
    };
    if length < 2 {
        return Err(keys.unsupported(length_key, length, "2 and more are"));
    }
    let bias = keys.flag(("conv_bias", ""))?.unwrap_or(false);
    let mlp =
        GatedMlp { width: ffn_width(config)?, activation: Activation::Silu, in_bias: false, out_bias: false };
    keys.only(("use_pos_enc", ""), true)?;
    keys.only(("block_use_swiglu", ""), true)?;
    // Second names of extents, and how training began; the reference code reads none of them.
    keys.ignore(&["block_dim", "conv_dim", "conv_dim_out", "num_heads", "theta", "block_norm_eps"]);
    keys.ignore(&[
        "block_mlp_init_scale",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
    ]);
    Ok((decoder, Box::new(Lfm2 { attention, conv: Conv { length, bias }, mlp })))
}

/// For each layer the KV heads, or `None` where it convolves. GGUF says so by a list with zeros.
fn kv_heads(config: &Config, decoder: &Decoder) -> Result<Vec<Option<usize>>, ModelError> {
    let (keys, layers) = (&config.keys, decoder.layers);
    if keys.is_gguf() {
        let key = ("", "attention.head_count_kv");
        let list = keys.numbers(key)?.unwrap_or_default();
        if list.len() != layers {
            return Err(keys.bad(key, format!("{} long", list.len()), &format!("a list {layers} long")));
        }
        return Ok(list.into_iter().map(|n| (n > 0).then_some(n)).collect());
    }
    let kv_heads = keys.count(("num_key_value_heads", ""))?.unwrap_or(8);
    let indices = keys.numbers(("full_attn_idxs", ""))?;
    let key = ("layer_types", "");
    let attends: Vec<bool> = match keys.texts(key)? {
        Some(types) if types.len() != layers => {
            return Err(keys.bad(key, format!("{} long", types.len()), &format!("{layers} long")));
        }
        Some(types) => {
            let known = |t: String| match t.as_str() {
                "full_attention" => Ok(true),
                "conv" => Ok(false),
                _ => Err(keys.unsupported(key, t, "full_attention and conv are")),
            };
            types.into_iter().map(known).collect::<Result<_, _>>()?
        }
        None => (0..layers).map(|l| indices.as_ref().is_none_or(|i| i.contains(&l))).collect(),
    };
    Ok(attends.into_iter().map(|a| a.then_some(kv_heads)).collect())
}

/// Width of the MLP: config.json gives one to be reduced to two thirds and rounded up; GGUF gives the result.
fn ffn_width(config: &Config) -> Result<usize, ModelError> {
    let keys = &config.keys;
    if keys.is_gguf() {
        return keys.need(("", "feed_forward_length"));
    }
    let (old, new) = (("block_ff_dim", ""), ("intermediate_size", ""));
    let given = keys.count(new)?;
    let width = match keys.count(old)?.or(given) {
        Some(width) => width,
        None => keys.need(new)?,
    };
    let multiplier_key = ("block_ffn_dim_multiplier", "");
    let multiplier = keys.positive(multiplier_key)?.unwrap_or(1.0);
    let multiple = keys.count(("block_multiple_of", ""))?.unwrap_or(256);
    if !keys.flag(("block_auto_adjust_ff_dim", ""))?.unwrap_or(true) {
        return Ok(width);
    }
    let reduced = 2 * width / 3;
    if keys.is_null(multiplier_key) {
        return Ok(reduced);
    }
    let scaled = multiplier * reduced as f64;
    if scaled > f64::from(i32::MAX) {
        return Err(keys.bad(multiplier_key, multiplier, "a multiplier that gives a possible width"));
    }
    Ok((scaled as usize).next_multiple_of(multiple))
}

impl Lfm2 {
    /// `out(C * conv(B * x))` with B, C, x projected from the normed rows.
    fn short_conv(&self, s: &Step, layer: usize, h: Tensor) -> Tensor {
        let (b, hidden, Conv { length, bias }) = (&s.b, s.decoder.hidden, self.conv);
        let stem = |name: &str| format!("blk.{layer}.shortconv.{name}");
        let bcx = s.linear(&stem("in_proj"), 3 * hidden, hidden, bias, h);
        let part = |i| b.slice(bcx, 1, i * hidden, hidden);
        let exact = Treatment { f32: true, ..Treatment::default() };
        let taps = s.weight(&stem("conv.weight"), &[hidden, length], exact);
        let ring = s.ring(RingSpec { layer, length: length - 1, width: hidden });
        let step = [s.pos(), s.extents(), s.slots(), s.snap()];
        let (mut y, _) = b.short_conv(b.mul(part(0), part(2)), taps, ring, step);
        if bias {
            y = b.add_row(y, s.vector(&stem("conv.bias"), hidden));
        }
        s.linear(&stem("out_proj"), hidden, hidden, bias, b.mul(part(1), y))
    }
}

impl Family for Lfm2 {
    fn layer(&self, s: &Step, layer: usize, x: Tensor) -> Tensor {
        let mixer = |h| match &self.attention[layer] {
            Some(attention) => s.attention(layer, attention, h),
            None => self.short_conv(s, layer, h),
        };
        s.pre_norm(layer, x, mixer, |h| s.gated_mlp(layer, &self.mlp, h))
    }
}
