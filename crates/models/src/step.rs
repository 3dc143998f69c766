//! Recording one step of a model: ports on demand, weights by name.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

use formats::Checkpoint;
use graph::{Builder, ScalarId, State, Tensor};
use tensor::DType;
use tensor::ops::KV_BLOCK;

use crate::decoder::Decoder;
use crate::error::TensorProblem;
use crate::rope::Rope;
use crate::weights::{Treatment, Weight};
use crate::{KvSpec, RingSpec};

/// The largest step a recording admits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepLimits {
    /// Rows (tokens) of a step.
    pub rows: usize,
    /// Sequences of a step.
    pub seqs: usize,
    /// Rows whose logits are wanted.
    pub outs: usize,
    /// KV blocks per sequence.
    pub pages: usize,
    /// KV blocks in the pool.
    pub blocks: usize,
    /// Slots of recurrent state.
    pub slots: usize,
}

/// What a recording found out about the model.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) weights: HashMap<String, Weight>,
    pub(crate) problems: Vec<TensorProblem>,
    pub(crate) kv: Vec<KvSpec>,
    pub(crate) rings: Vec<RingSpec>,
    pub(crate) position_limit: Option<usize>,
}

/// One step being recorded. Inputs are declared when first asked for, so that a graph has those it uses.
pub(crate) struct Step<'m> {
    pub(crate) b: Builder,
    pub(crate) decoder: &'m Decoder,
    pub(crate) limits: StepLimits,
    pub(crate) notes: RefCell<Notes>,
    checkpoint: &'m Checkpoint,
    known: &'m HashMap<String, Weight>,
    kv_dtype: DType,
    scalars: Scalars,
    inputs: [OnceCell<Tensor>; 6],
}

#[derive(Clone, Copy)]
struct Scalars {
    rows: ScalarId,
    seqs: ScalarId,
    outs: ScalarId,
}

impl<'m> Step<'m> {
    /// A recording over the weights `known`; others are looked up in the checkpoint and noted.
    pub(crate) fn new(
        decoder: &'m Decoder,
        checkpoint: &'m Checkpoint,
        known: &'m HashMap<String, Weight>,
        limits: StepLimits,
        kv_dtype: DType,
    ) -> Step<'m> {
        let b = Builder::new();
        let scalars = Scalars { rows: b.scalar("rows"), seqs: b.scalar("seqs"), outs: b.scalar("outs") };
        let notes = RefCell::default();
        Step { b, decoder, limits, notes, checkpoint, known, kv_dtype, scalars, inputs: Default::default() }
    }

    fn rows(&self, at: usize, name: &str) -> Tensor {
        let declare = || self.b.input(name, DType::U32, &[self.limits.rows], Some(self.scalars.rows));
        *self.inputs[at].get_or_init(declare)
    }

    fn seqs(&self, at: usize, name: &str, width: Option<usize>) -> Tensor {
        let dims = [self.limits.seqs, width.unwrap_or_default()];
        let dims = if width.is_some() { &dims[..] } else { &dims[..1] };
        *self.inputs[at].get_or_init(|| self.b.input(name, DType::U32, dims, Some(self.scalars.seqs)))
    }

    /// `ids [rows]`: tokens.
    pub(crate) fn ids(&self) -> Tensor {
        self.b.input(crate::IDS, DType::U32, &[self.limits.rows], Some(self.scalars.rows))
    }

    /// `out_rows [outs]`: the rows whose logits are wanted.
    pub(crate) fn out_rows(&self) -> Tensor {
        self.b.input("out_rows", DType::U32, &[self.limits.outs], Some(self.scalars.outs))
    }

    /// `pos [rows]`: positions in the sequences.
    pub(crate) fn pos(&self) -> Tensor {
        self.rows(0, "pos")
    }

    /// `until [rows]`: one past the last visible key.
    pub(crate) fn until(&self) -> Tensor {
        self.rows(1, "until")
    }

    /// `extents [seqs]`: rows of each sequence.
    pub(crate) fn extents(&self) -> Tensor {
        self.seqs(2, "extents", None)
    }

    /// `pages [seqs, pages]`: KV blocks of each sequence.
    pub(crate) fn pages(&self) -> Tensor {
        self.seqs(3, "pages", Some(self.limits.pages))
    }

    /// `slots [seqs]`: the recurrent state each sequence starts from.
    pub(crate) fn slots(&self) -> Tensor {
        self.seqs(4, "slots", None)
    }

    /// `snap [rows]`: the slot that receives the state after the row.
    pub(crate) fn snap(&self) -> Tensor {
        self.rows(5, "snap")
    }

    /// The KV cache of a layer, `kv.{layer} [blocks, 16, heads, k_dim + v_dim]`.
    pub(crate) fn kv(&self, spec: KvSpec) -> State {
        let dims = [self.limits.blocks, KV_BLOCK, spec.heads, spec.k_dim + spec.v_dim];
        let state = self.b.state(&crate::kv_state(spec.layer), self.kv_dtype, &dims);
        self.notes.borrow_mut().kv.push(spec);
        state
    }

    /// The rows a layer keeps of the past, `ring.{layer} [slots, length, width]`.
    pub(crate) fn ring(&self, spec: RingSpec) -> State {
        let dims = [self.limits.slots, spec.length, spec.width];
        let state = self.b.state(&crate::ring_state(spec.layer), DType::F32, &dims);
        self.notes.borrow_mut().rings.push(spec);
        state
    }

    /// A weight of any treatment, named as in GGUF.
    pub(crate) fn weight(&self, port: &str, dims: &[usize], treatment: Treatment) -> Tensor {
        self.declare(port, dims, || {
            Weight::stored(self.checkpoint, self.decoder.names, port, dims, treatment)
        })
    }

    /// A matrix `[n, k]` as stored.
    pub(crate) fn matrix(&self, port: &str, n: usize, k: usize) -> Tensor {
        self.weight(port, &[n, k], Treatment::default())
    }

    /// A row `[n]` of F32.
    pub(crate) fn vector(&self, port: &str, n: usize) -> Tensor {
        self.weight(port, &[n], Treatment { f32: true, ..Treatment::default() })
    }

    /// The frequencies of a rotary embedding.
    pub(crate) fn inv_freq(&self, rope: &Rope) -> Tensor {
        {
            let limit = &mut self.notes.borrow_mut().position_limit;
            *limit = [*limit, rope.limit].into_iter().flatten().min();
        }
        let row = &rope.inv_freq;
        self.declare(rope.port, &[row.len()], || {
            Weight::computed(rope.port, row.clone()).map_err(|p| vec![p])
        })
    }

    fn declare(
        &self,
        port: &str,
        dims: &[usize],
        find: impl FnOnce() -> Result<Weight, Vec<TensorProblem>>,
    ) -> Tensor {
        let notes = &mut *self.notes.borrow_mut();
        let dtype = match self.known.get(port).or(notes.weights.get(port)) {
            Some(weight) => weight.dtype,
            None => match find() {
                Ok(weight) => {
                    let dtype = weight.dtype;
                    notes.weights.insert(port.to_owned(), weight);
                    dtype
                }
                // Recording goes on, so that all problems are reported at once.
                Err(problems) => {
                    notes.problems.extend(problems);
                    DType::F32
                }
            },
        };
        self.b.weight(port, dtype, dims)
    }

    /// `x W^T` with `W [n, k]`, plus the row `{stem}.bias [n]` if there is one.
    pub(crate) fn linear(&self, stem: &str, n: usize, k: usize, bias: bool, x: Tensor) -> Tensor {
        self.project(stem, n, k, bias, None, x)
    }

    /// As [`Step::linear`]; the rows of a q or k matrix are put in half-split order, `head` to a head.
    pub(crate) fn project(
        &self,
        stem: &str,
        n: usize,
        k: usize,
        bias: bool,
        head: Option<usize>,
        x: Tensor,
    ) -> Tensor {
        let interleaved = head.filter(|_| self.decoder.interleaved);
        let treatment = Treatment { interleaved, ..Treatment::default() };
        let y = self.b.matmul(x, self.weight(&format!("{stem}.weight"), &[n, k], treatment));
        if !bias {
            return y;
        }
        self.b.add_row(y, self.weight(&format!("{stem}.bias"), &[n], Treatment { f32: true, ..treatment }))
    }

    /// RMS norm over the last axis, of extent `n`.
    pub(crate) fn norm(&self, stem: &str, n: usize, x: Tensor) -> Tensor {
        let treatment = Treatment { f32: true, plus_one: self.decoder.plus_one, ..Treatment::default() };
        self.b.rms_norm(x, self.weight(&format!("{stem}.weight"), &[n], treatment), self.decoder.eps)
    }
}
