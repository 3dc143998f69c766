//! The blocks that families are made of, along their axes.

use std::sync::Arc;

use graph::Tensor;
use tensor::Op;
use tensor::ops::Activation;

use crate::KvSpec;
use crate::rope::Rope;
use crate::step::Step;
use crate::weights::Treatment;

/// Grouped-query attention.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Extent of a query or key head.
    pub(crate) k_dim: usize,
    /// Extent of a value head.
    pub(crate) v_dim: usize,
    /// Multiplier of the scores.
    pub(crate) scale: f32,
    /// Last keys seen, the query's own included.
    pub(crate) window: Option<usize>,
    /// RMS norm of each query and key head before the rotation.
    pub(crate) qk_norm: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) rope: Arc<Rope>,
}

/// `down(act(gate x) * up x)`.
#[derive(Clone, Debug)]
pub(crate) struct GatedMlp {
    pub(crate) width: usize,
    pub(crate) activation: Activation,
    pub(crate) in_bias: bool,
    pub(crate) out_bias: bool,
}

/// A softmax router over gated MLPs.
#[derive(Clone, Debug)]
pub(crate) struct Moe {
    pub(crate) experts: usize,
    /// Experts per token.
    pub(crate) chosen: usize,
    /// Width of an expert.
    pub(crate) width: usize,
    pub(crate) activation: Activation,
    /// The chosen weights are divided by their sum.
    pub(crate) renormalise: bool,
}

impl Step<'_> {
    /// Attention of one layer over normed rows `h [rows, hidden]`, without the residual.
    pub(crate) fn attention(&self, layer: usize, a: &Attention, h: Tensor) -> Tensor {
        let b = &self.b;
        let (rows, hidden) = (self.limits.rows, self.decoder.hidden);
        let stem = |name: &str| format!("blk.{layer}.{name}");
        let head = Some(a.k_dim);
        let q = self.project(&stem("attn_q"), a.heads * a.k_dim, hidden, a.qkv_bias, head, h);
        let k = self.project(&stem("attn_k"), a.kv_heads * a.k_dim, hidden, a.qkv_bias, head, h);
        let v = self.project(&stem("attn_v"), a.kv_heads * a.v_dim, hidden, a.qkv_bias, None, h);
        let mut q = b.reshape(q, &[rows, a.heads, a.k_dim]);
        let mut k = b.reshape(k, &[rows, a.kv_heads, a.k_dim]);
        let v = b.reshape(v, &[rows, a.kv_heads, a.v_dim]);
        if a.qk_norm {
            q = self.norm(&stem("attn_q_norm"), a.k_dim, q);
            k = self.norm(&stem("attn_k_norm"), a.k_dim, k);
        }
        let (pos, extents, pages) = (self.pos(), self.extents(), self.pages());
        let inv_freq = self.inv_freq(&a.rope);
        let q = b.rope(q, pos, inv_freq, a.rope.magnitude);
        let k = b.rope(k, pos, inv_freq, a.rope.magnitude);
        let spec = KvSpec { layer, heads: a.kv_heads, k_dim: a.k_dim, v_dim: a.v_dim, window: a.window };
        let cache = b.kv_write(self.kv(spec), k, v, pos, extents, pages);
        // Windows are below 2^31 (`Keys`).
        let op = Op::Attention { scale: a.scale, window: a.window.map(|w| w as u32), softcap: None };
        let o = b.attention(op, q, cache, pos, self.until(), extents, pages);
        let o = b.reshape(o, &[rows, a.heads * a.v_dim]);
        self.linear(&stem("attn_output"), hidden, a.heads * a.v_dim, a.out_bias, o)
    }

    /// Gated MLP of one layer over normed rows, without the residual.
    pub(crate) fn gated_mlp(&self, layer: usize, mlp: &GatedMlp, h: Tensor) -> Tensor {
        let (b, hidden) = (&self.b, self.decoder.hidden);
        let stem = |name: &str| format!("blk.{layer}.{name}");
        let gate = self.linear(&stem("ffn_gate"), mlp.width, hidden, mlp.in_bias, h);
        let up = self.linear(&stem("ffn_up"), mlp.width, hidden, mlp.in_bias, h);
        let y = b.mul(b.activate(mlp.activation, gate), up);
        self.linear(&stem("ffn_down"), hidden, mlp.width, mlp.out_bias, y)
    }

    /// Mixture of experts of one layer over normed rows, without the residual. The router is F32 in every file: its
    /// choices must not depend on how it was stored.
    pub(crate) fn moe(&self, layer: usize, moe: &Moe, h: Tensor) -> Tensor {
        let (b, hidden, n) = (&self.b, self.decoder.hidden, moe.experts);
        let port = |name: &str| format!("blk.{layer}.{name}.weight");
        let exact = Treatment { f32: true, ..Treatment::default() };
        let stacked = Treatment { stacked: true, ..Treatment::default() };
        let logits = b.matmul(h, self.weight(&port("ffn_gate_inp"), &[n, hidden], exact));
        let (weights, experts) = b.route(logits, moe.chosen, moe.renormalise);
        let into = |name: &str| {
            b.expert_matmul(h, self.weight(&port(name), &[n, moe.width, hidden], stacked), experts)
        };
        let (gate, up) = (into("ffn_gate_exps"), into("ffn_up_exps"));
        let y = b.mul(b.activate(moe.activation, gate), up);
        let down = self.weight(&port("ffn_down_exps"), &[n, hidden, moe.width], stacked);
        b.expert_sum(b.expert_matmul(y, down, experts), weights)
    }

    /// One pre-norm layer: `x + mixer(norm x)`, then `+ ffn(norm of that)`.
    pub(crate) fn pre_norm(
        &self,
        layer: usize,
        x: Tensor,
        mixer: impl FnOnce(Tensor) -> Tensor,
        ffn: impl FnOnce(Tensor) -> Tensor,
    ) -> Tensor {
        let hidden = self.decoder.hidden;
        let x = self.b.add(x, mixer(self.norm(&format!("blk.{layer}.attn_norm"), hidden, x)));
        self.b.add(x, ffn(self.norm(&format!("blk.{layer}.ffn_norm"), hidden, x)))
    }
}
