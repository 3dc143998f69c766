//! Model families: a checkpoint's hyper-parameters become graphs over the op vocabulary.
//!
//! [`Model::open`] picks the family in the registry, reads the hyper-parameters (refusing, by key, what its code does
//! not understand) and finds every weight; [`Model::record`] records a step; [`Model::weights`] gives the rows of a
//! graph's weights in the order the graph means them. The crate knows no device and does no I/O: it reads the
//! checkpoint it is given.
//!
//! Rotary embedding is half-split everywhere: what a container stores for interleaved pairs is put in order when its
//! rows are read.

mod blocks;
mod decoder;
mod error;
mod families;
mod gguf_form;
mod keys;
mod registry;
mod rope;
mod step;
mod weights;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use formats::Checkpoint;
use graph::Graph;
use graph::backend::WeightDesc;
use tensor::DType;

use decoder::{Config, Decoder};
pub use error::{ModelError, TensorProblem};
pub use gguf_form::{GgufForm, GgufTensor};
use registry::Family;
pub use step::StepLimits;
use step::{Notes, Step};
use weights::Weight;
pub use weights::WeightRows;

/// Prefill chunks of models with recurrent state end at multiples of this position, or at the prompt's end.
pub const RECURRENT_CHUNK: usize = 64;

/// The input of a step's tokens.
pub const IDS: &str = "ids";
/// The output of a step's logits.
pub const LOGITS: &str = "logits";
/// The output of the normed hidden states behind the last layer.
pub const HIDDEN_FINAL: &str = "hidden.final";

/// The output of the hidden states before a layer; for the number of layers, of those behind the last.
pub fn hidden(layer: usize) -> String {
    format!("hidden.{layer}")
}

/// Name of the KV cache of a layer.
pub fn kv_state(layer: usize) -> String {
    format!("kv.{layer}")
}

/// Name of what a layer keeps of past rows.
pub fn ring_state(layer: usize) -> String {
    format!("ring.{layer}")
}

/// The KV cache of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvSpec {
    /// The layer; the state is `kv.{layer}`.
    pub layer: usize,
    /// KV heads.
    pub heads: usize,
    /// Elements of a key.
    pub k_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
    /// The last positions a row can see, its own included; `None` for all.
    pub window: Option<usize>,
}

/// The rows one layer keeps of the past, per slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSpec {
    /// The layer; the state is `ring.{layer}`.
    pub layer: usize,
    /// Rows kept.
    pub length: usize,
    /// Elements of a row.
    pub width: usize,
}

/// What is to be known about an opened model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelInfo {
    /// `general.name`, or empty.
    pub name: String,
    /// The family's name in the registry.
    pub architecture: &'static str,
    /// Entries of the vocabulary, the width of the logits.
    pub vocab: usize,
    /// Positions it was trained for.
    pub context: usize,
    /// From this position on, other rotary frequencies would be needed (scaling types `dynamic`, `longrope`), which is
    /// not implemented: sequences must stay below. `None` for most.
    pub position_limit: Option<usize>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// KV caches, by layer; layers without one are absent.
    pub kv: Vec<KvSpec>,
    /// Recurrent states, by layer.
    pub rings: Vec<RingSpec>,
    /// The head is the embedding table.
    pub tied_embedding: bool,
    /// True when any weight is stored in a block format.
    pub quantised: bool,
    /// Elements of the stored weights.
    pub parameters: u64,
}

impl ModelInfo {
    /// Whether there is recurrent state: prefill cuts at multiples of [`RECURRENT_CHUNK`].
    pub fn recurrent(&self) -> bool {
        !self.rings.is_empty()
    }
}

/// A checkpoint understood as a model.
pub struct Model {
    checkpoint: Arc<Checkpoint>,
    decoder: Decoder,
    family: Box<dyn Family>,
    weights: HashMap<String, Weight>,
    info: ModelInfo,
}

/// Whether there is code for the architecture that the bytes of a config.json name, whatever there is of its weights.
///
/// # Errors
/// There is none; the known ones are listed. Bytes that name none are no error here.
pub fn check_architecture(config: &[u8]) -> Result<(), ModelError> {
    serde_json::from_slice(config).map_or(Ok(()), |config| registry::knows(&config))
}

impl Model {
    /// Reads the hyper-parameters and finds every weight.
    ///
    /// # Errors
    /// An architecture, key or value that is not known; tensors that are missing, of another shape, or left over.
    pub fn open(checkpoint: Arc<Checkpoint>) -> Result<Model, ModelError> {
        let (architecture, keys, read) = registry::find(&checkpoint)?;
        let config = Config { keys, checkpoint: &checkpoint, used: Default::default() };
        let (decoder, family) = read(&config)?;
        let mut used = config.used.into_inner();
        config.keys.finish(architecture)?;

        let known = HashMap::new();
        let limits = StepLimits { rows: 1, seqs: 1, outs: 1, pages: 1, blocks: 1, slots: 1 };
        let step = Step::new(&decoder, &checkpoint, &known, limits, DType::F32);
        let (graph, notes) = record(step, &*family, false);
        let Notes { weights, mut problems, kv, rings, position_limit } = notes;
        // Those with a problem of their own have a place.
        used.extend(problems.iter().map(|problem| problem.name().to_owned()));
        problems.extend(left_over(&checkpoint, &weights, used));
        if !problems.is_empty() {
            return Err(ModelError::Tensors(problems));
        }
        graph?;
        let name = checkpoint.gguf().and_then(|m| m.get::<&str>("general.name").ok().flatten());
        let info = ModelInfo {
            name: name.unwrap_or_default().to_owned(),
            architecture,
            vocab: decoder.vocab,
            context: decoder.context,
            position_limit,
            hidden: decoder.hidden,
            layers: decoder.layers,
            kv,
            rings,
            tied_embedding: decoder.tied,
            quantised: weights.values().any(|w| w.dtype.is_quantised()),
            parameters: weights.values().map(Weight::parameters).sum(),
        };
        Ok(Model { checkpoint, decoder, family, weights, info })
    }

    /// What is to be known about it.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The checkpoint it was opened from.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Records a step, unfused.
    ///
    /// Inputs, each u32 and only where the model uses it: `ids`, `pos`, `until`, `snap` `[rows]` bound by the scalar
    /// `rows`; `extents`, `slots` `[seqs]` and `pages [seqs, pages]` bound by `seqs`; `out_rows [outs]` bound by `outs`.
    /// States: `kv.{layer} [blocks, 16, heads, k_dim + v_dim]` of type `kv_dtype` and `ring.{layer} [slots, length,
    /// width]` of F32. Output: `logits f32 [outs, vocab]`. With `taps` also `hidden.{i} f32 [rows, hidden]`, the residual
    /// stream before layer `i` (after the last one for `i` = layers), and `hidden.final`, the normed one.
    ///
    /// # Errors
    /// Limits that give impossible shapes, or a type that no KV cache has (see [`tensor::ops::KvType`]).
    pub fn record(&self, limits: &StepLimits, kv_dtype: DType, taps: bool) -> Result<Graph, ModelError> {
        let step = Step::new(&self.decoder, &self.checkpoint, &self.weights, *limits, kv_dtype);
        record(step, &*self.family, taps).0
    }

    /// The weights of a graph, as recorded here or rewritten since, in the order of its ports.
    ///
    /// # Errors
    /// The name of a weight port that is none of this model's.
    pub fn weights<'m>(&'m self, graph: &Graph) -> Result<Vec<WeightRows<'m>>, ModelError> {
        let rows = |desc: WeightDesc| {
            let name = desc.name.clone();
            let weight = self.weights.get(&name);
            let rows = weight.and_then(|w| WeightRows::new(desc, w, &self.checkpoint));
            rows.ok_or(ModelError::ForeignWeight { name })
        };
        graph.weights().into_iter().map(rows).collect()
    }
}

/// The whole decoder: embedding, layers, final norm and head.
fn record(step: Step, family: &dyn Family, taps: bool) -> (Result<Graph, ModelError>, Notes) {
    let (b, d) = (&step.b, step.decoder);
    let table = step.matrix("token_embd.weight", d.vocab, d.hidden);
    let mut x = b.scale(b.gather(table, step.ids()), d.embed_scale);
    for layer in 0..d.layers {
        if taps {
            b.output(&hidden(layer), x);
        }
        x = family.layer(&step, layer, x);
    }
    if taps {
        b.output(&hidden(d.layers), x);
        b.output(HIDDEN_FINAL, step.norm(d.final_norm, d.hidden, x));
    }
    // Only the rows that are asked for go through the head, the largest matrix of a small model.
    let x = step.norm(d.final_norm, d.hidden, b.gather(x, step.out_rows()));
    let head = if d.tied { table } else { step.matrix("output.weight", d.vocab, d.hidden) };
    b.output(LOGITS, b.matmul(x, head));
    let Step { b, notes, .. } = step;
    (b.finish().map_err(ModelError::from), notes.into_inner())
}

/// Tensors that nothing uses, but for those known to say nothing new.
fn left_over(
    checkpoint: &Checkpoint,
    weights: &HashMap<String, Weight>,
    used: Vec<String>,
) -> Vec<TensorProblem> {
    // Rotary frequencies that old files carry and that follow from the hyper-parameters.
    const DERIVED: &[&str] = &["rotary_emb.inv_freq", "attn_rot_embd.weight"];
    let used: HashSet<&str> =
        weights.values().flat_map(|w| w.parts()).chain(&used).map(String::as_str).collect();
    let left = checkpoint
        .tensors()
        .filter(|t| !used.contains(t.name) && !DERIVED.iter().any(|d| t.name.ends_with(d)));
    left.map(|t| TensorProblem::Unused { name: t.name.to_owned(), found: t.shape.to_vec() }).collect()
}
