//! The op vocabulary: everything a graph can compute, on one page.
//!
//! One file per family beneath holds, side by side, each op's definition, shape rule, tolerance and reference.
//! Matrices of weights are `[N, K]` (a row per output). Activations are f32; their first axis is the rows of a step.
//!
//! **Operands.** The order of operands and results is stated at each op. Row ops accept any operand whose rows are
//! equally spaced (see [`crate::Layout::row_stride`]): contiguous tensors, column slices and broadcast rows.
//!
//! **Step operands.** Ops that know about sequences take arrays of the step as u32 tensors:
//! `pos`, `until`, `extents`, `pages`, `slots`, `snap`.

use crate::{DType, HostTensor, Shape};

pub mod attention;
pub mod delta;
pub mod elementwise;
pub mod kv_cache;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod recurrent;
pub mod reference;
pub mod rope;
pub mod sample;
#[cfg(test)]
mod tests;

pub use elementwise::{Activation, Binary};
pub use kv_cache::{KV_SCALED, KvType};
pub use reference::{Bounds, Precision, ReferenceError};
pub use sample::{NO_TOKEN, NOT_A_TOKEN};

/// Positions per KV block.
pub const KV_BLOCK: usize = 16;

/// Marks a row of `snap` that stores no state.
pub const NO_SNAP: u32 = u32::MAX;

/// One operation.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    // --- linear (linear.rs) ---
    /// Rows of a table by id. `table [V, D]` of any float or block type, `ids u32 [R]` -> `f32 [R, D]`.
    /// An id at or beyond V gives zeros.
    Gather,
    /// `y = x W^T`. `x f32 [.., K]`, `w [N, K]` -> `f32 [.., N]`.
    MatMul,
    /// Several matrices applied to one input; the fusion of sibling [`Op::MatMul`]s with their optional biases.
    /// `x f32 [R, K]`, `w_i [N_i, K]` (as many as `biased` is long), then `bias_i f32 [N_i]` for every `true` ->
    /// `f32 [R, N_i]` each.
    MatMuls {
        /// Which of the matrices has a bias.
        biased: Vec<bool>,
    },

    // --- elementwise (elementwise.rs) ---
    /// `a op b`, same shape (a row is repeated with an explicit broadcast view). `f32, f32 -> f32`.
    Binary(Binary),
    /// `act(x)`. `f32 -> f32`.
    Activate(Activation),
    /// `act(gate) * up`; the fusion of [`Op::Activate`] and a product. `f32, f32 -> f32`.
    GatedActivate(Activation),
    /// `x * factor`, a constant of the model. `f32 -> f32`.
    Scale {
        /// The multiplier.
        factor: f32,
    },

    // --- norm (norm.rs) ---
    /// `x / sqrt(mean(x^2) + eps) * w` over the last axis. `x f32 [.., D]`, `w f32 [D]` -> `f32 [.., D]`.
    RmsNorm {
        /// Added inside the root.
        eps: f32,
    },
    /// Residual add followed by [`Op::RmsNorm`] of the sum. `x f32 [R, D]`, `y f32 [R, D]`, `w f32 [D]` ->
    /// `sum f32 [R, D]`, `normed f32 [R, D]`.
    AddRmsNorm {
        /// Added inside the root.
        eps: f32,
    },

    // --- rope (rope.rs) ---
    /// Rotary position embedding, half-split pairing over the first `2 * F` dims of each head; the rest passes.
    /// `x f32 [R, heads, D]`, `pos u32 [R]`, `inv_freq f32 [F]` -> `f32 [R, heads, D]`.
    Rope {
        /// Factor on cos and sin (YaRN's attention factor); 1 for plain RoPE.
        magnitude: f32,
    },

    // --- attention (attention.rs) ---
    /// Writes this step's keys and values into the paged cache. `k f32 [R, H, Dk]`, `v f32 [R, H, Dv]`,
    /// `cache state [blocks, 16, H, Dk + Dv]` of a [`KvType`], `pos u32 [R]`, `extents u32 [S]`, `pages u32 [S, P]` ->
    /// nothing; the state moves to its next version. Each element is rounded to the cache's type: to binary16, or as
    /// [`kv_cache::q8_block`] does.
    KvWrite,
    /// Attention of this step's queries over the paged cache, with running softmax.
    /// `q f32 [R, Hq, Dk]`, `cache state [blocks, 16, H, Dk + Dv]`, `pos u32 [R]`, `until u32 [R]`, `extents u32 [S]`,
    /// `pages u32 [S, P]` -> `f32 [R, Hq, Dv]`. Query head h reads KV head `h / (Hq / H)`. A row sees the keys
    /// `max(0, pos + 1 - window) .. until`; a row that sees none gives zeros.
    Attention {
        /// Multiplier of the scores.
        scale: f32,
        /// Sliding window: the last so many keys, the query's own included.
        window: Option<u32>,
        /// `cap * tanh(score / cap)` before masking.
        softcap: Option<f32>,
    },

    // --- moe (moe.rs) ---
    /// Chooses experts: softmax over all logits, the `k` largest (ties to the lower id), optionally renormalised to
    /// sum 1. `logits f32 [R, E]` -> `weights f32 [R, k]`, `experts u32 [R, k]`. A row that holds NaN, or whose largest
    /// logit is not finite, is refused by itself ([`moe::REFUSED_LOGITS`]): the others have their results.
    Route {
        /// Experts per row.
        k: usize,
        /// Divide the chosen weights by their sum.
        renormalise: bool,
    },
    /// Each row's matrices chosen by id. `x f32 [R, K]` or `[R, k, K]`, `w [E, N, K]`, `experts u32 [R, k]` ->
    /// `f32 [R, k, N]`.
    ExpertMatMul,
    /// Weighted sum over the chosen experts, in slot order. `y f32 [R, k, N]`, `weights f32 [R, k]` -> `f32 [R, N]`.
    ExpertSum,

    // --- recurrent (recurrent.rs) ---
    /// Causal depthwise convolution with a state per slot: `out[t] = sum_j w[:, j] * x[t - (L - 1) + j]`.
    /// `x f32 [R, D]`, `w f32 [D, L]`, `ring state [slots, L - 1, D]` (oldest first), `pos u32 [R]`, `extents u32 [S]`,
    /// `slots u32 [S]`, `snap u32 [R]` -> `f32 [R, D]`. A segment that starts at position 0 starts from zeros, otherwise
    /// from its slot; after each row whose `snap` is a slot the state is stored there.
    ShortConv,

    // --- delta rule (delta.rs) ---
    /// The gated delta rule, a matrix `S [Dk, Dv]` for each slot and head: with `k` and `q` divided by
    /// `sqrt(their sum of squares + eps)`, each row does `S = exp(log_decay) S`, `S += k (beta (v - S^T k))^T`,
    /// `out = scale S^T q`, in this order. `q, k f32 [R, Hk, Dk]`, `v f32 [R, H, Dv]`, `log_decay, beta f32 [R, H]`,
    /// `state [slots, H, Dk, Dv]`, `pos u32 [R]`, `extents u32 [S]`, `slots u32 [S]`, `snap u32 [R]` -> `f32 [R, H, Dv]`.
    /// Head h has the key and query of head `h / (H / Hk)`. Segments start, and states are stored, as in [`Op::ShortConv`].
    GatedDeltaRule {
        /// Multiplier of the queries.
        scale: f32,
        /// Added to the sums of squares.
        eps: f32,
    },

    // --- sampling (sample.rs) ---
    /// Draws a token from each row of logits and keeps it in a slot, in the integers of [`crate::sampling`]: the `top_k`
    /// highest (0: all; ties to the lower id), of these the smallest set of the highest whose weight reaches `top_p` (0:
    /// all), of these what weighs at least `min_p`, of these the first in order of id at which the sum of weights exceeds
    /// `uniform` of the total. `logits f32 [O, V]`, `drawn state u32 [slots]`, `into u32 [O]` (a slot, or [`NO_SNAP`]: the
    /// row draws nothing and gives [`NO_TOKEN`]), and of [`crate::sampling::Policy`]: `uniform u32 [O]`,
    /// `sharpness f32 [O]`, `top_k u32 [O]`, `top_p u32 [O]`, `min_p u32 [O]` (at most [`crate::sampling::ONE`]) -> `u32 [O]`.
    /// A row with a NaN or +inf gives [`NOT_A_TOKEN`] plus the first such token, one with nothing above -inf [`NO_TOKEN`];
    /// that, too, is kept.
    Sample,
    /// Ids of which some are tokens that earlier steps drew: an entry [`NOT_A_TOKEN`]` + s` becomes what slot s holds.
    /// `ids u32 [R]`, `drawn state u32 [slots]` -> `u32 [R]`.
    Feed,
}

/// What an operand looks like to a shape rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

/// Why operands do not fit an op. `operand` counts from 0 in the documented order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operand {operand} ({role}): {problem}")]
pub struct OperandError {
    /// Which operand.
    pub operand: usize,
    /// Its role, as named in the op's documentation.
    pub role: &'static str,
    /// What is wrong and what was expected.
    pub problem: String,
}

impl Op {
    /// Short name for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Gather => "gather",
            Op::MatMul => "matmul",
            Op::MatMuls { .. } => "matmuls",
            Op::Binary(Binary::Add) => "add",
            Op::Binary(Binary::Mul) => "mul",
            Op::Activate(a) => a.name(),
            Op::GatedActivate(Activation::Silu) => "swiglu",
            Op::GatedActivate(Activation::GeluTanh) => "geglu_tanh",
            Op::GatedActivate(Activation::GeluErf) => "geglu_erf",
            Op::GatedActivate(Activation::Sigmoid) => "glu",
            Op::Scale { .. } => "scale",
            Op::RmsNorm { .. } => "rms_norm",
            Op::AddRmsNorm { .. } => "add_rms_norm",
            Op::Rope { .. } => "rope",
            Op::KvWrite => "kv_write",
            Op::Attention { .. } => "attention",
            Op::Route { .. } => "route",
            Op::ExpertMatMul => "expert_matmul",
            Op::ExpertSum => "expert_sum",
            Op::ShortConv => "short_conv",
            Op::GatedDeltaRule { .. } => "gated_delta_rule",
            Op::Sample => "sample",
            Op::Feed => "feed",
        }
    }

    /// The roles of the operands, in order. [`Op::MatMuls`] repeats its last two.
    pub fn roles(&self) -> &'static [&'static str] {
        match self {
            Op::Gather => &["table", "ids"],
            Op::MatMul => &["x", "w"],
            Op::MatMuls { .. } => &["x", "w or bias"],
            Op::Binary(_) => &["a", "b"],
            Op::Activate(_) | Op::Scale { .. } => &["x"],
            Op::GatedActivate(_) => &["gate", "up"],
            Op::RmsNorm { .. } => &["x", "w"],
            Op::AddRmsNorm { .. } => &["x", "y", "w"],
            Op::Rope { .. } => &["x", "pos", "inv_freq"],
            Op::KvWrite => &["k", "v", "cache", "pos", "extents", "pages"],
            Op::Attention { .. } => &["q", "cache", "pos", "until", "extents", "pages"],
            Op::Route { .. } => &["logits"],
            Op::ExpertMatMul => &["x", "w", "experts"],
            Op::ExpertSum => &["y", "weights"],
            Op::ShortConv => &["x", "w", "ring", "pos", "extents", "slots", "snap"],
            Op::GatedDeltaRule { .. } => {
                &["q", "k", "v", "log_decay", "beta", "state", "pos", "extents", "slots", "snap"]
            }
            Op::Sample => &["logits", "drawn", "into", "uniform", "sharpness", "top_k", "top_p", "min_p"],
            Op::Feed => &["ids", "drawn"],
        }
    }

    /// The operand that is a state, if any; an op with one that writes it is [`Op::writes_state`].
    pub fn state_operand(&self) -> Option<usize> {
        match self {
            Op::KvWrite | Op::ShortConv => Some(2),
            Op::GatedDeltaRule { .. } => Some(5),
            Op::Attention { .. } | Op::Sample | Op::Feed => Some(1),
            _ => None,
        }
    }

    /// True when the state operand moves to its next version.
    pub fn writes_state(&self) -> bool {
        matches!(self, Op::KvWrite | Op::ShortConv | Op::GatedDeltaRule { .. } | Op::Sample)
    }

    /// The results' types and shapes, or what is wrong with the operands.
    ///
    /// # Errors
    /// The first operand that does not fit, by role.
    pub fn infer(&self, operands: &[Operand]) -> Result<Vec<Operand>, OperandError> {
        let check = Check { roles: self.roles(), operands };
        check.count(self)?;
        match self {
            Op::Gather | Op::MatMul | Op::MatMuls { .. } => linear::infer(self, &check),
            Op::Binary(_) | Op::Activate(_) | Op::GatedActivate(_) | Op::Scale { .. } => {
                elementwise::infer(self, &check)
            }
            Op::RmsNorm { .. } | Op::AddRmsNorm { .. } => norm::infer(self, &check),
            Op::Rope { .. } => rope::infer(&check),
            Op::KvWrite | Op::Attention { .. } => attention::infer(self, &check),
            Op::Route { .. } | Op::ExpertMatMul | Op::ExpertSum => moe::infer(self, &check),
            Op::ShortConv => recurrent::infer(&check),
            Op::GatedDeltaRule { .. } => delta::infer(&check),
            Op::Sample | Op::Feed => sample::infer(self, &check),
        }
    }

    /// The results by the op's definition, accumulated in f64 and rounded once; a state operand that the op writes is
    /// updated in place. The oracle of every kernel.
    ///
    /// # Errors
    /// Operands that do not fit (as [`Op::infer`] says), or values the op does not allow: a page, slot or expert that
    /// does not exist, extents beyond the rows, router logits that are not numbers. The state is then unspecified.
    pub fn reference(&self, args: &mut [HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
        self.check_args(args)?;
        match self {
            Op::Gather | Op::MatMul | Op::MatMuls { .. } => linear::reference(self, args),
            Op::Binary(_) | Op::Activate(_) | Op::GatedActivate(_) | Op::Scale { .. } => {
                elementwise::reference(self, args)
            }
            Op::RmsNorm { .. } | Op::AddRmsNorm { .. } => norm::reference(self, args),
            Op::Rope { magnitude } => rope::reference(args, *magnitude),
            Op::KvWrite | Op::Attention { .. } => attention::reference(self, args),
            Op::Route { .. } | Op::ExpertMatMul | Op::ExpertSum => moe::reference(self, args),
            Op::ShortConv => recurrent::reference(args),
            Op::GatedDeltaRule { .. } => delta::reference(self, args),
            Op::Sample | Op::Feed => sample::reference(self, args),
        }
    }

    /// For each result and element, how far a kernel of this precision may lie from [`Op::reference`]. Where a state that the
    /// op writes is copied, it may differ only where the copied values do; where it is computed, the bounds of later steps
    /// have room for that.
    ///
    /// # Errors
    /// Those of [`Op::reference`].
    pub fn bounds(&self, args: &[HostTensor], precision: Precision) -> Result<Bounds, ReferenceError> {
        self.check_args(args)?;
        match self {
            Op::Gather | Op::MatMul | Op::MatMuls { .. } => linear::bounds(self, args, precision),
            Op::Binary(_) | Op::Activate(_) | Op::GatedActivate(_) | Op::Scale { .. } => {
                elementwise::bounds(self, args)
            }
            Op::RmsNorm { .. } | Op::AddRmsNorm { .. } => norm::bounds(self, args),
            Op::Rope { magnitude } => rope::bounds(args, *magnitude),
            Op::KvWrite | Op::Attention { .. } => attention::bounds(self, args),
            Op::Route { .. } | Op::ExpertMatMul | Op::ExpertSum => moe::bounds(self, args, precision),
            Op::ShortConv => recurrent::bounds(args),
            Op::GatedDeltaRule { .. } => delta::bounds(self, args),
            // Integers: every kernel gives the same.
            Op::Sample | Op::Feed => Ok(vec![vec![0.0; args[0].dims()[0]]]),
        }
    }

    fn check_args(&self, args: &[HostTensor]) -> Result<Vec<Operand>, OperandError> {
        let operands: Vec<Operand> = args.iter().map(HostTensor::operand).collect();
        self.infer(&operands)
    }
}

/// Operand checks shared by the shape rules.
pub(crate) struct Check<'a> {
    roles: &'static [&'static str],
    operands: &'a [Operand],
}

impl Check<'_> {
    fn role(&self, i: usize) -> &'static str {
        self.roles.get(i).or(self.roles.last()).copied().unwrap_or("operand")
    }

    pub(crate) fn fail<T>(&self, operand: usize, problem: impl Into<String>) -> Result<T, OperandError> {
        Err(OperandError { operand, role: self.role(operand), problem: problem.into() })
    }

    fn count(&self, op: &Op) -> Result<(), OperandError> {
        let want = match op {
            Op::MatMuls { biased } => 1 + biased.len() + biased.iter().filter(|b| **b).count(),
            _ => self.roles.len(),
        };
        if self.operands.len() == want {
            return Ok(());
        }
        self.fail(
            self.operands.len().min(want),
            format!("{} operands given, {want} needed", self.operands.len()),
        )
    }

    pub(crate) fn dims(&self, i: usize) -> &[usize] {
        self.operands[i].shape.dims()
    }

    pub(crate) fn dtype(&self, i: usize) -> DType {
        self.operands[i].dtype
    }

    pub(crate) fn shape(&self, i: usize) -> Shape {
        self.operands[i].shape
    }

    /// Operand `i` has this type.
    pub(crate) fn is(&self, i: usize, dtype: DType) -> Result<(), OperandError> {
        if self.dtype(i) == dtype {
            Ok(())
        } else {
            self.fail(i, format!("is {}, must be {dtype}", self.dtype(i)))
        }
    }

    /// Operand `i` has this type and rank.
    pub(crate) fn ranked(&self, i: usize, dtype: DType, rank: usize) -> Result<&[usize], OperandError> {
        self.is(i, dtype)?;
        if self.dims(i).len() != rank {
            return self.fail(i, format!("has shape {}, must have {rank} axes", self.shape(i)));
        }
        Ok(self.dims(i))
    }

    /// Operand `i` has exactly this type and shape.
    pub(crate) fn exactly(&self, i: usize, dtype: DType, dims: &[usize]) -> Result<(), OperandError> {
        self.is(i, dtype)?;
        if self.dims(i) != dims {
            return self.fail(i, format!("has shape {}, must be {dims:?}", self.shape(i)));
        }
        Ok(())
    }

    /// Operand `i` is a weight of any storable float type with this rank, rows filling whole blocks.
    pub(crate) fn weight(&self, i: usize, rank: usize) -> Result<&[usize], OperandError> {
        if self.dtype(i) == DType::U32 {
            return self.fail(i, "is U32, must be a float or block type");
        }
        if self.dims(i).len() != rank {
            return self.fail(i, format!("has shape {}, must have {rank} axes", self.shape(i)));
        }
        let k = self.shape(i).last();
        let block = self.dtype(i).block_len();
        if !k.is_multiple_of(block) {
            return self.fail(i, format!("rows of {k} do not fill {} blocks of {block}", self.dtype(i)));
        }
        Ok(self.dims(i))
    }
}

/// An f32 or u32 result of the given extents.
pub(crate) fn result(dtype: DType, dims: &[usize]) -> Operand {
    // Extents come from operands that are valid shapes; a product that overflows is caught by the builder's own check.
    Operand { dtype, shape: Shape::new(dims).unwrap_or_else(|_| Shape::new(&[0]).expect("rank 1")) }
}
