//! What every decoder-only family reads from a checkpoint.

use std::cell::RefCell;
use std::sync::Arc;

use formats::Checkpoint;
use serde_json::Value;
use tensor::ops::Activation;
use tensor::{DType, blocks};

use crate::blocks::{Attention, GatedMlp};
use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::keys::{Key, Keys, Range, number};
use crate::rope::{FACTORS, Rope};
use crate::weights::Names;

/// A checkpoint being opened: its hyper-parameters, and which tensors were used while reading them.
pub(crate) struct Config<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) used: RefCell<Vec<String>>,
}

/// The shared axes of a decoder.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    /// Positions the model was trained for.
    pub(crate) context: usize,
    pub(crate) eps: f32,
    /// Multiplier of the embedded tokens.
    pub(crate) embed_scale: f32,
    /// The head is the embedding table.
    pub(crate) tied: bool,
    /// Stem of the final norm's name.
    pub(crate) final_norm: &'static str,
    /// Names that differ from the common ones.
    pub(crate) names: Names,
    /// GGUF files of the family store q and k for interleaved rotary pairs.
    pub(crate) interleaved: bool,
    /// Norm weights are stored less 1.
    pub(crate) plus_one: bool,
}

/// What a family's configuration class of transformers fills in for absent keys.
pub(crate) struct Defaults {
    pub(crate) context: usize,
    pub(crate) eps_key: &'static str,
    pub(crate) eps: f64,
    /// In the order in which they win.
    pub(crate) tied_keys: &'static [&'static str],
    pub(crate) tied: bool,
    pub(crate) kv_heads: Option<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) theta: f64,
}

const HIDDEN: Key = ("hidden_size", "embedding_length");
const LAYERS: Key = ("num_hidden_layers", "block_count");
const CONTEXT: Key = ("max_position_embeddings", "context_length");
/// In GGUF; the other container has a key for each family.
const EPS_KEY: &str = "attention.layer_norm_rms_epsilon";
const VOCAB: Key = ("vocab_size", "vocab_size");
const K_DIM: Key = ("head_dim", "attention.key_length");
const V_DIM: Key = ("", "attention.value_length");
const ROTARY: Key = ("", "rope.dimension_count");
/// Width of gated MLPs.
pub(crate) const WIDTH: Key = ("intermediate_size", "feed_forward_length");
/// Query heads.
pub(crate) const HEADS: Key = ("num_attention_heads", "attention.head_count");
/// KV heads.
pub(crate) const KV_HEADS: Key = ("num_key_value_heads", "attention.head_count_kv");

/// Where rounding to f32 leaves it above 0.
const EPS: Range = Range::new(1e-30, 1.0, "a number above 0, at most 1 (from 1e-30)");

impl Config<'_> {
    /// An extent of weights. Every element along it is stored, so that a hostile number is refused, by its key, before
    /// anything of its size is made or listed.
    pub(crate) fn extent(&self, key: Key) -> Result<Option<usize>, ModelError> {
        self.keys.count(key)?.map(|n| self.possible(key, n)).transpose()
    }

    /// The extent that follows from a key, if weights of it can be there.
    pub(crate) fn possible(&self, key: Key, extent: usize) -> Result<usize, ModelError> {
        let most = self.checkpoint.file_bytes();
        if extent == 0 || extent as u64 > most {
            let expected = format!("what gives from 1 to the number of the checkpoint's bytes, {most}");
            return Err(self.keys.bad(key, extent, &expected));
        }
        Ok(extent)
    }

    /// An extent that has no default.
    pub(crate) fn need_extent(&self, key: Key) -> Result<usize, ModelError> {
        self.extent(key)?.map_or_else(|| self.keys.need(key), Ok)
    }

    /// An extent, with the default of the configuration class; a GGUF file says everything.
    pub(crate) fn extent_or(&self, key: Key, default: usize) -> Result<usize, ModelError> {
        match self.extent(key)? {
            None if self.keys.is_gguf() => self.keys.need(key),
            given => Ok(given.unwrap_or(default)),
        }
    }

    /// True when the checkpoint has a tensor of this name.
    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.checkpoint.tensor_names().any(|n| n == tensor)
    }

    /// The shared axes.
    pub(crate) fn decoder(&self, defaults: &Defaults) -> Result<Decoder, ModelError> {
        let keys = &self.keys;
        let hidden = self.need_extent(HIDDEN)?;
        let layers = self.layers()?;
        let context = keys.count(CONTEXT)?;
        let context = match context {
            None if keys.is_gguf() => keys.need(CONTEXT)?,
            given => given.unwrap_or(defaults.context),
        };
        let eps_key: Key = (defaults.eps_key, EPS_KEY);
        let eps = match keys.within_range(eps_key, &EPS)? {
            None if keys.is_gguf() => return Err(keys.missing(eps_key, "a number above 0")),
            given => given.unwrap_or(defaults.eps) as f32,
        };
        let vocab = match self.extent(VOCAB)? {
            // Files of some families name it only through the embedding table.
            None if keys.is_gguf() => self
                .checkpoint
                .tensor("token_embd.weight")
                .ok()
                .map_or(0, |t| t.shape.first().copied().unwrap_or(0)),
            None => keys.need(VOCAB)?,
            Some(vocab) => vocab,
        };
        let tied = if keys.is_gguf() {
            !self.has("output.weight")
        } else {
            let mut tied = None;
            for key in defaults.tied_keys {
                tied = tied.or(keys.flag((key, ""))?);
            }
            tied.unwrap_or(defaults.tied) && !self.own_head()
        };
        keys.only(("", "attention.causal"), true)?;
        token_ids(keys, vocab)?;
        Ok(Decoder {
            vocab,
            hidden,
            layers,
            context,
            eps,
            embed_scale: 1.0,
            tied,
            final_norm: "output_norm",
            names: &[],
            interleaved: false,
            plus_one: false,
        })
    }

    /// The number of layers, at most the number of tensors there are: each has some.
    fn layers(&self) -> Result<usize, ModelError> {
        let key = LAYERS;
        let layers = self.keys.need(key)?;
        let tensors = self.checkpoint.tensors().count();
        if layers > tensors {
            let expected = format!("at most the number of tensors in the checkpoint, {tensors}");
            return Err(self.keys.bad(key, layers, &expected));
        }
        Ok(layers)
    }

    /// A checkpoint that stores a head of other values than the embedding table uses it, whatever the configuration
    /// says of tying; transformers 5 does so too. An equal copy is the same model.
    fn own_head(&self) -> bool {
        let (Ok(head), Ok(table)) =
            (self.checkpoint.tensor("lm_head.weight"), self.checkpoint.tensor("model.embed_tokens.weight"))
        else {
            return false;
        };
        let same = head.bytes == table.bytes && head.dtype == table.dtype;
        if same {
            self.used.borrow_mut().push("lm_head.weight".to_owned());
        }
        !same
    }

    /// Full attention in every layer; the family changes what differs.
    pub(crate) fn attention(&self, decoder: &Decoder, defaults: &Defaults) -> Result<Attention, ModelError> {
        let rope = |dims| Rope::read(&self.keys, dims, defaults.theta, decoder.context);
        self.attention_of(decoder, defaults, self.heads(defaults)?, rope)
    }

    /// Query and KV heads, the same in every layer.
    pub(crate) fn heads(&self, defaults: &Defaults) -> Result<[usize; 2], ModelError> {
        let keys = &self.keys;
        let heads = self.need_extent(HEADS)?;
        // A null means as many as query heads, also where the default is another number.
        let kv_default = if keys.is_gguf() || keys.is_null(KV_HEADS) { None } else { defaults.kv_heads };
        let kv_heads = self.extent(KV_HEADS)?;
        Ok([heads, kv_heads.unwrap_or(kv_default.unwrap_or(heads))])
    }

    /// As [`Config::attention`], with the query and KV heads and the reader of the rotary table given.
    pub(crate) fn attention_of(
        &self,
        decoder: &Decoder,
        defaults: &Defaults,
        [heads, kv_heads]: [usize; 2],
        rope: impl FnOnce(usize) -> Result<Rope, ModelError>,
    ) -> Result<Attention, ModelError> {
        let keys = &self.keys;
        if heads % kv_heads != 0 {
            return Err(keys.bad(KV_HEADS, kv_heads, &format!("a divisor of the {heads} query heads")));
        }
        let default = if keys.is_gguf() { None } else { defaults.head_dim };
        let split = || match decoder.hidden % heads {
            0 => Ok(decoder.hidden / heads),
            _ => {
                let expected = format!("a divisor of the {} of the residual stream", decoder.hidden);
                Err(keys.bad(HEADS, heads, &format!("{expected}, when no width of a head is given")))
            }
        };
        let k_dim = match self.extent(K_DIM)?.or(default) {
            Some(dim) => dim,
            None => split()?,
        };
        // llama.cpp, too, takes the other one's default, not the value of the key.
        let v_dim = match self.extent(V_DIM)? {
            Some(dim) => dim,
            None if keys.is_gguf() => split()?,
            None => k_dim,
        };
        let rotary = ROTARY;
        if let Some(value) = keys.count(rotary)?.filter(|n| *n != k_dim) {
            return Err(keys.unsupported(rotary, value, &format!("the whole head of {k_dim} is")));
        }
        let mut rope = rope(k_dim)?;
        self.divide_by_stored_factors(&mut rope)?;
        Ok(Attention {
            heads,
            kv_heads,
            k_dim,
            v_dim,
            scale: (k_dim as f64).powf(-0.5) as f32,
            window: None,
            qk_norm: false,
            qkv_bias: false,
            out_bias: false,
            rope: Arc::new(rope),
        })
    }

    /// Biases: what `attention_bias` says, or what a GGUF file has.
    pub(crate) fn attention_biases(&self, attention: &mut Attention) -> Result<(), ModelError> {
        let flag = self.keys.flag(("attention_bias", ""))?.unwrap_or(false);
        let gguf = self.keys.is_gguf();
        attention.qkv_bias = if gguf { self.has("blk.0.attn_q.bias") } else { flag };
        attention.out_bias = if gguf { self.has("blk.0.attn_output.bias") } else { flag };
        Ok(())
    }

    /// A GGUF file carries the scaling of Llama 3.1 as a table of divisors.
    fn divide_by_stored_factors(&self, rope: &mut Rope) -> Result<(), ModelError> {
        let name = FACTORS;
        if !self.keys.is_gguf() || !self.has(name) {
            return Ok(());
        }
        let wrong = |found: String| ModelError::BadValue {
            key: name.to_owned(),
            found,
            expected: format!("{} positive F32 numbers", rope.inv_freq.len()),
        };
        let view = self.checkpoint.tensor(name).map_err(|e| wrong(e.to_string()))?;
        if view.dtype != DType::F32 || view.shape != [rope.inv_freq.len()] {
            return Err(wrong(format!("{} {:?}", view.dtype, view.shape)));
        }
        let mut factors = vec![0.0; view.shape[0]];
        blocks::decode(view.dtype, view.bytes, &mut factors).map_err(|e| wrong(e.to_string()))?;
        if factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
            return Err(wrong(format!("{factors:?}")));
        }
        rope.divide(&factors);
        self.used.borrow_mut().push(name.to_owned());
        Ok(())
    }

    /// The feed-forward block of every layer, without biases.
    pub(crate) fn gated_mlp(
        &self,
        activation_key: &'static str,
        default: Activation,
    ) -> Result<GatedMlp, ModelError> {
        let width = self.need_extent(WIDTH)?;
        let activation = self.activation(activation_key, default)?;
        Ok(GatedMlp { width, activation, in_bias: false, out_bias: false })
    }

    /// The activation of a configuration; a GGUF file has none and means the family's.
    pub(crate) fn activation(
        &self,
        name: &'static str,
        default: Activation,
    ) -> Result<Activation, ModelError> {
        Ok(match self.keys.text((name, ""))?.as_deref() {
            None => default,
            Some("silu" | "swish") => Activation::Silu,
            Some("gelu" | "gelu_python") => Activation::GeluErf,
            Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate") => {
                Activation::GeluTanh
            }
            Some("sigmoid") => Activation::Sigmoid,
            Some(other) => {
                let known = "silu, swish, sigmoid, gelu, gelu_python, gelu_pytorch_tanh, gelu_python_tanh, \
                             gelu_new, gelu_fast and gelu_accurate are";
                return Err(self.keys.unsupported((name, ""), other, known));
            }
        })
    }

    /// For each layer, whether its attention slides, from `layer_types`; `None` when there is no such key.
    pub(crate) fn sliding_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let key = ("layer_types", "");
        let Some(types) = self.keys.texts(key)? else { return Ok(None) };
        if types.len() != layers {
            return Err(self.keys.bad(key, format!("{} long", types.len()), &format!("{layers} long")));
        }
        let slides = types.iter().map(|t| match t.as_str() {
            "full_attention" => Ok(false),
            "sliding_attention" => Ok(true),
            other => Err(self.keys.unsupported(key, other, "full_attention and sliding_attention are")),
        });
        slides.collect::<Result<_, _>>().map(Some)
    }
}

impl Decoder {
    /// Says the shared axes in the keys of a GGUF file.
    pub(crate) fn write_gguf(&self, out: &mut GgufForm) {
        out.count(CONTEXT, self.context);
        out.count(HIDDEN, self.hidden);
        out.count(LAYERS, self.layers);
        out.count(VOCAB, self.vocab);
        out.float(("", EPS_KEY), self.eps);
    }
}

impl Attention {
    /// Says heads, their widths and the rotation in the keys of a GGUF file; not windows and the scale.
    pub(crate) fn write_gguf(&self, out: &mut GgufForm) -> Result<(), ModelError> {
        out.count(HEADS, self.heads);
        out.count(KV_HEADS, self.kv_heads);
        out.count(K_DIM, self.k_dim);
        out.count(V_DIM, self.v_dim);
        out.count(ROTARY, self.k_dim);
        self.rope.write_gguf(out)
    }
}

impl GatedMlp {
    /// Says the width in the keys of a GGUF file, which know no activation.
    pub(crate) fn write_gguf(&self, usual: Activation, out: &mut GgufForm) -> Result<(), ModelError> {
        out.usual_activation(self.activation, usual)?;
        out.count(WIDTH, self.width);
        Ok(())
    }
}

/// The tokens with a meaning of their own, of either container, lie in the vocabulary, or are refused: an id beyond it would
/// never be met. Which they are is the tokenizer's business.
fn token_ids(keys: &Keys, vocab: usize) -> Result<(), ModelError> {
    const OUTSIDE: [&str; 6] = ["bos", "eos", "eot", "eom", "padding", "unknown"];
    // Without an embedding table, which is reported with the other tensors, there is no vocabulary.
    for name in OUTSIDE.iter().filter(|_| vocab > 0) {
        let name = format!("tokenizer.ggml.{name}_token_id");
        if let Some(value) = keys.outside(&name) {
            ids(&name, &value, vocab, false)?;
        }
    }
    let check = |name: &'static str, many| match keys.value((name, "")) {
        Some(value) => ids(name, &value, vocab, many),
        None => Ok(()),
    };
    // Files from before null was written for none have -1, and nothing here fills batches.
    if keys.value(("pad_token_id", "")).is_none_or(|v| v.as_i64() != Some(-1)) {
        check("pad_token_id", false)?;
    }
    check("bos_token_id", false)?;
    check("eos_token_id", true)
}

/// One id of a vocabulary, or, where there may be `many`, a list of them.
fn ids(key: &str, value: &Value, vocab: usize, many: bool) -> Result<(), ModelError> {
    let one = |v: &Value| match number(v) {
        Some(id) if id < vocab => Ok(()),
        _ => Err(ModelError::BadValue {
            key: key.to_owned(),
            found: value.to_string(),
            expected: format!(
                "a token id{} below the size of the vocabulary, {vocab}",
                if many { ", or a list of them, each" } else { "" }
            ),
        }),
    };
    match value.as_array() {
        Some(list) if many && !list.is_empty() => list.iter().try_for_each(one),
        _ => one(value),
    }
}
