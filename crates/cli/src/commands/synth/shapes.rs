//! The shapes that can be written, with the hyper-parameters of the published models they are named after.

use gristmill::parts::formats::gguf::{GgufWriter, Value};
use gristmill::parts::tensor::DType;

use super::fill::Content;
use super::vocab;

/// A model's shape.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Name on the command line.
    pub(super) name: &'static str,
    architecture: &'static str,
    /// How the tokenizer splits text.
    pre: &'static str,
    vocab: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    context: u32,
    eps: f32,
    theta: f32,
    /// The head is the embedding table.
    tied: bool,
    /// Norms on the heads of q and k.
    qk_norm: bool,
    /// Norms behind attention and feed-forward block as well as before.
    post_norms: bool,
    window: Option<u32>,
    /// Rotary frequencies are divided: by how much, and the context the model was trained in before.
    stretch: Option<(f64, f64)>,
    /// Of every layer's feed-forward block: how many, how many of them a row takes, and the width of one.
    experts: Option<[usize; 3]>,
}

const QWEN3: Shape = Shape {
    name: "",
    architecture: "qwen3",
    pre: "qwen2",
    vocab: 151_936,
    hidden: 0,
    layers: 0,
    heads: 0,
    kv_heads: 8,
    head_dim: 128,
    ffn: 0,
    context: 40_960,
    eps: 1e-6,
    theta: 1_000_000.0,
    tied: false,
    qk_norm: true,
    post_norms: false,
    window: None,
    stretch: None,
    experts: None,
};

const QWEN3_MOE: Shape = Shape { architecture: "qwen3moe", ..QWEN3 };

/// Every shape.
pub(super) const SHAPES: &[Shape] = &[
    Shape { name: "qwen3-8b", hidden: 4096, layers: 36, heads: 32, ffn: 12_288, ..QWEN3 },
    Shape { name: "qwen3-0.6b", hidden: 1024, layers: 28, heads: 16, ffn: 3072, tied: true, ..QWEN3 },
    Shape {
        name: "qwen3-30b-a3b",
        hidden: 2048,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        ffn: 6144,
        experts: Some([128, 8, 768]),
        ..QWEN3_MOE
    },
    Shape {
        name: "llama-3.2-1b",
        architecture: "llama",
        pre: "llama-bpe",
        vocab: 128_256,
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        ffn: 8192,
        context: 131_072,
        eps: 1e-5,
        theta: 500_000.0,
        tied: true,
        qk_norm: false,
        post_norms: false,
        window: None,
        stretch: Some((32.0, 8192.0)),
        experts: None,
    },
    Shape {
        name: "gemma-3-1b",
        architecture: "gemma3",
        pre: "gpt-2",
        vocab: 262_144,
        hidden: 1152,
        layers: 26,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        ffn: 6912,
        context: 32_768,
        eps: 1e-6,
        theta: 1_000_000.0,
        tied: true,
        qk_norm: true,
        post_norms: true,
        window: Some(512),
        stretch: None,
        experts: None,
    },
    // For tests: every row is whole blocks of every type.
    Shape {
        name: "tiny",
        vocab: 512,
        hidden: 256,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 512,
        context: 2048,
        ..QWEN3
    },
    Shape {
        name: "tiny-moe",
        vocab: 512,
        hidden: 256,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 512,
        context: 2048,
        experts: Some([8, 3, 256]),
        ..QWEN3_MOE
    },
];

/// A tensor to be written: name, dimensions with the outermost first, content.
pub(super) type Tensor = (String, Vec<usize>, Content);

impl Shape {
    /// This shape with as many layers, or its own number.
    pub(super) fn of_layers(&self, layers: Option<usize>) -> Shape {
        Shape { layers: layers.unwrap_or(self.layers), ..*self }
    }

    /// The tensors, with matrices of this type.
    pub(super) fn tensors(&self, quant: DType) -> Vec<Tensor> {
        let mut all: Vec<Tensor> = vec![];
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut add = |name: String, dims: &[usize], content: Content| {
            all.push((format!("{name}.weight"), dims.to_vec(), content));
        };
        let matrix = || Content::Matrix(quant);
        add("token_embd".into(), &[self.vocab, self.hidden], matrix());
        if let Some((factor, trained)) = self.stretch {
            let divisors = self.divisors(factor, trained);
            add("rope_freqs".into(), &[divisors.len()], Content::Table(divisors));
        }
        for layer in 0..self.layers {
            let name = |stem: &str| format!("blk.{layer}.{stem}");
            add(name("attn_norm"), &[self.hidden], Content::Norm);
            add(name("attn_q"), &[q, self.hidden], matrix());
            add(name("attn_k"), &[kv, self.hidden], matrix());
            add(name("attn_v"), &[kv, self.hidden], matrix());
            if self.qk_norm {
                add(name("attn_q_norm"), &[self.head_dim], Content::Norm);
                add(name("attn_k_norm"), &[self.head_dim], Content::Norm);
            }
            add(name("attn_output"), &[self.hidden, q], matrix());
            add(name("ffn_norm"), &[self.hidden], Content::Norm);
            match self.experts {
                None => {
                    add(name("ffn_gate"), &[self.ffn, self.hidden], matrix());
                    add(name("ffn_up"), &[self.ffn, self.hidden], matrix());
                    add(name("ffn_down"), &[self.hidden, self.ffn], matrix());
                }
                Some([experts, _, width]) => {
                    // Routers are F32 in every file.
                    add(name("ffn_gate_inp"), &[experts, self.hidden], Content::Matrix(DType::F32));
                    add(name("ffn_gate_exps"), &[experts, width, self.hidden], matrix());
                    add(name("ffn_up_exps"), &[experts, width, self.hidden], matrix());
                    add(name("ffn_down_exps"), &[experts, self.hidden, width], matrix());
                }
            }
            if self.post_norms {
                add(name("post_attention_norm"), &[self.hidden], Content::Norm);
                add(name("post_ffw_norm"), &[self.hidden], Content::Norm);
            }
        }
        add("output_norm".into(), &[self.hidden], Content::Norm);
        if !self.tied {
            add("output".into(), &[self.vocab, self.hidden], matrix());
        }
        all
    }

    /// Llama 3.1's rotary scaling as a GGUF file carries it: long waves are divided by the factor, short ones are not, and
    /// between one and four turns in the trained context the divisor goes over smoothly.
    fn divisors(&self, factor: f64, trained: f64) -> Vec<f32> {
        let half = self.head_dim / 2;
        let each = (0..half).map(|i| {
            let frequency = f64::from(self.theta).powf(-(i as f64) / half as f64);
            let turns = trained * frequency / std::f64::consts::TAU;
            let smooth = ((turns - 1.0) / (4.0 - 1.0)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
        });
        each.collect()
    }

    /// Hyper-parameters and tokenizer.
    pub(super) fn metadata(&self, writer: &mut GgufWriter) {
        let text = |s: &str| Value::String(s.to_owned());
        writer.metadata("general.architecture", text(self.architecture));
        writer.metadata("general.name", Value::String(format!("{} with random weights", self.name)));
        let mut set = |key: &str, value| {
            writer.metadata(&format!("{}.{key}", self.architecture), value);
        };
        let count = |n: usize| Value::U32(n as u32);
        set("vocab_size", count(self.vocab));
        set("context_length", Value::U32(self.context));
        set("embedding_length", count(self.hidden));
        set("block_count", count(self.layers));
        set("feed_forward_length", count(self.ffn));
        set("attention.head_count", count(self.heads));
        set("attention.head_count_kv", count(self.kv_heads));
        set("attention.key_length", count(self.head_dim));
        set("attention.value_length", count(self.head_dim));
        set("attention.layer_norm_rms_epsilon", Value::F32(self.eps));
        set("rope.freq_base", Value::F32(self.theta));
        if let Some([experts, chosen, width]) = self.experts {
            set("expert_count", count(experts));
            set("expert_used_count", count(chosen));
            set("expert_feed_forward_length", count(width));
        }
        if let Some(window) = self.window {
            set("attention.sliding_window", Value::U32(window));
        }
        vocab::metadata(writer, self.pre, self.vocab);
    }
}
