//! LFM2: gated short convolutions, with attention in some layers.

use std::collections::BTreeSet;

use graph::Tensor;
use tensor::ops::Activation;

use crate::RingSpec;
use crate::blocks::{Attention, GatedMlp};
use crate::decoder::{Config, Decoder, Defaults, HEADS, KV_HEADS};
use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::keys::{Key, Range};
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

const LENGTH: Key = ("conv_L_cache", "shortconv.l_cache");

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
    let heads = config.need_extent(HEADS)?;
    let of = |kv| {
        let rope = |dims| Rope::read(keys, dims, DEFAULTS.theta, decoder.context);
        let attention = config.attention_of(&decoder, &DEFAULTS, [heads, kv], rope)?;
        Ok(Attention { qk_norm: true, ..attention })
    };
    let kv_heads = kv_heads(config, &decoder, heads)?;
    if kv_heads.iter().all(Option::is_none) {
        // The keys of attention are read and checked all the same.
        of(heads)?;
    }
    let attention = kv_heads.into_iter().map(|kv| kv.map(of).transpose());
    let attention = attention.collect::<Result<_, ModelError>>()?;
    let length_key = LENGTH;
    let length = config.extent_or(length_key, 3)?;
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
fn kv_heads(config: &Config, decoder: &Decoder, heads: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let (keys, layers) = (&config.keys, decoder.layers);
    if keys.is_gguf() {
        let list = keys.numbers(KV_HEADS)?.unwrap_or_default();
        if list.len() != layers {
            return Err(keys.bad(KV_HEADS, format!("{} long", list.len()), &format!("a list {layers} long")));
        }
        return Ok(list.into_iter().map(|n| (n > 0).then_some(n)).collect());
    }
    let default = if keys.is_null(KV_HEADS) { heads } else { 8 };
    let kv_heads = config.extent(KV_HEADS)?.unwrap_or(default);
    let indices = keys.layers(("full_attn_idxs", ""), layers)?;
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
            let attends = types.into_iter().map(known).collect::<Result<Vec<_>, _>>()?;
            let named = |(layer, attends): (usize, &bool)| attends.then_some(layer);
            let named: BTreeSet<usize> = attends.iter().enumerate().filter_map(named).collect();
            if let Some(indices) = indices.filter(|i| i.iter().copied().collect::<BTreeSet<_>>() != named) {
                let expected = format!("{named:?}, as `layer_types` says, or absent");
                return Err(keys.bad(("full_attn_idxs", ""), format!("{indices:?}"), &expected));
            }
            attends
        }
        None => (0..layers).map(|l| indices.as_ref().is_none_or(|i| i.contains(&l))).collect(),
    };
    Ok(attends.into_iter().map(|a| a.then_some(kv_heads)).collect())
}

/// Width of the MLP: config.json gives one to be reduced to two thirds and rounded up; GGUF gives the result.
fn ffn_width(config: &Config) -> Result<usize, ModelError> {
    let keys = &config.keys;
    if keys.is_gguf() {
        return config.need_extent(("", "feed_forward_length"));
    }
    // Before it is reduced it may exceed what is stored. The first key wins.
    let (old, new) = (("block_ff_dim", ""), ("intermediate_size", ""));
    let (key, width) = match (keys.count(old)?, keys.count(new)?) {
        (Some(width), _) => (old, width),
        (None, Some(width)) => (new, width),
        (None, None) => (new, keys.need(new)?),
    };
    const MULTIPLIER: Range = Range::new(1e-3, 1e3, "a number above 0 (from 0.001 to 1000)");
    let multiplier_key = ("block_ffn_dim_multiplier", "");
    let multiplier = keys.within_range(multiplier_key, &MULTIPLIER)?.unwrap_or(1.0);
    let multiple = config.extent(("block_multiple_of", ""))?.unwrap_or(256);
    let adjusted = if !keys.flag(("block_auto_adjust_ff_dim", ""))?.unwrap_or(true) {
        width
    } else if keys.is_null(multiplier_key) {
        2 * width / 3
    } else {
        // At most 2^31 * 1000.
        ((multiplier * (2 * width / 3) as f64) as usize).next_multiple_of(multiple)
    };
    config.possible(key, adjusted)
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

    fn write_gguf(&self, _: &Decoder, out: &mut GgufForm) -> Result<(), ModelError> {
        if self.conv.bias {
            return Err(out.none("biases of convolutions (`conv_bias`)"));
        }
        let Some(attention) = self.attention.iter().flatten().next() else {
            return Err(out.none("a model without attention"));
        };
        attention.write_gguf(out)?;
        let kv_heads = self.attention.iter().map(|a| a.as_ref().map_or(0, |a| a.kv_heads));
        out.counts(KV_HEADS, kv_heads);
        out.count(LENGTH, self.conv.length);
        self.mlp.write_gguf(Activation::Silu, out)
    }
}
