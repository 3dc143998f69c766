//! How much a token costs: what is compared with the peaks of the machine.

use anyhow::Result;
use gristmill::parts::graph::{Graph, PortKind, ScalarId, ValueId};
use gristmill::parts::models::{KvSpec, StepLimits};
use gristmill::parts::tensor::{DType, Op};
use gristmill::{KvType, Model, Peaks, Precision};

use super::measure::Test;
use super::report::Row;

/// Products with weights, counted in the recorded graph: sums over layers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    /// Multiply-adds of a token whose logits are not wanted.
    pub(super) row_products: u64,
    /// Further multiply-adds of a token whose logits are wanted: the head.
    pub(super) out_products: u64,
    /// Stored bytes of all matrices that generating one token reads; of experts, those that are chosen.
    pub(super) weight_bytes: u64,
    kv: Vec<KvSpec>,
}

/// How close a test came to the peaks, and what they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// The peaks.
    pub(super) peaks: Peaks,
    /// Generation: bytes of weights and KV cache per second, as a share of what memory moves.
    pub(super) read: Option<f64>,
    /// Prompts in the `fast` class: operations per second, as a share of what can be computed.
    pub(super) int: Option<f64>,
}

impl Work {
    /// Counts the work of a model.
    pub(super) fn of(model: &Model) -> Result<Work> {
        let limits = StepLimits { rows: 1, seqs: 1, outs: 1, pages: 1, blocks: 1, slots: 1 };
        let graph = model.record(&limits, DType::F32, false)?;
        let outs = graph.scalars.iter().position(|s| s == "outs").map(|i| ScalarId(i as u32));
        let mut work =
            Work { row_products: 0, out_products: 0, weight_bytes: 0, kv: model.info().kv.clone() };
        for node in &graph.nodes {
            let share = match node.op {
                Op::MatMul => (1, 1),
                Op::ExpertMatMul => {
                    let chosen = graph.value(node.inputs[2]).layout.shape.last();
                    (chosen, graph.value(node.inputs[1]).layout.shape.dims()[0])
                }
                _ => continue,
            };
            let (elements, bytes) = weight(&graph, node.inputs[1], share);
            work.weight_bytes += bytes;
            let bound = graph.value(node.inputs[0]).bound;
            match bound.is_some() && bound == outs {
                true => work.out_products += elements,
                false => work.row_products += elements,
            }
        }
        Ok(work)
    }

    /// A measured row as shares of the peaks.
    pub(super) fn shares(&self, row: &Row, peaks: Peaks) -> Shares {
        let rate = row.rate().mean;
        match row.test {
            Test::Prompt { n, .. } => {
                let ops = 2.0 * (self.row_products as f64 + self.out_products as f64 / n as f64);
                let peak = peaks.int_ops.filter(|_| row.precision == Precision::Fast);
                let int = peak.map(|peak| ops * rate / peak);
                Shares { peaks, read: None, int }
            }
            Test::Generate { n, depth, sequences } => {
                let keys = depth + n.div_ceil(2);
                // A step reads the weights once for all sequences.
                let bytes = self.weight_bytes + self.kv_bytes(keys, row.kv_type) * sequences as u64;
                let steps = rate / sequences as f64;
                Shares { peaks, read: Some(bytes as f64 * steps / peaks.memory_bytes), int: None }
            }
        }
    }

    /// Bytes of keys and values that a token reads when `keys` positions are there.
    fn kv_bytes(&self, keys: usize, kv_type: KvType) -> u64 {
        let position = |kv: &KvSpec| kv.heads * kv_type.bytes_for(kv.k_dim + kv.v_dim);
        self.kv.iter().map(|kv| (position(kv) * keys.min(kv.window.unwrap_or(keys))) as u64).sum()
    }
}

/// Elements and bytes of a weight's share.
fn weight(graph: &Graph, id: ValueId, (part, of): (usize, usize)) -> (u64, u64) {
    let Some(port) = graph.port_of(id).map(|p| graph.port(p)).filter(|p| p.kind == PortKind::Weight) else {
        return (0, 0);
    };
    let elements = port.shape.elements();
    let bytes = port.dtype.bytes_for(elements).unwrap_or(0);
    let share = |n: usize| (n as u64) * part as u64 / of.max(1) as u64;
    (share(elements), share(bytes))
}
