//! Two products and the gated activation of both as one step.

use graph::backend::{DeviceError, Precision};
use graph::{Graph, Node};
use tensor::Op;

use crate::quant::BLOCK;

use super::super::gated::{GatedOutput, GatedStep};
use super::super::steps::{Input, Product, Step};
use super::{BLOCK_WORDS, Compiler, gated_op};

/// The nodes of two products whose results the next node gates, and nobody else reads.
pub(super) fn pairs(graph: &Graph) -> Vec<usize> {
    let uses = graph.uses();
    let pair = |at: &usize| {
        let [products, act] = &graph.nodes[*at..*at + 2] else { return false };
        matches!(&products.op, Op::MatMuls { biased } if biased.len() == 2)
            && matches!(act.op, Op::GatedActivate(_))
            && products.outputs == act.inputs
            && products.outputs.iter().all(|id| uses[id.0 as usize] == 1)
    };
    (0..graph.nodes.len().saturating_sub(1)).filter(pair).collect()
}

impl Compiler<'_> {
    /// The step of such a pair. What follows decides what it leaves.
    pub(super) fn gated(&mut self, node: &Node, act: &Node, next: Option<&Node>) -> Result<(), DeviceError> {
        let (Op::MatMuls { biased }, Op::GatedActivate(activation)) = (&node.op, &act.op) else {
            unreachable!("a pair is these two ops");
        };
        let (weights, biases) = self.siblings(node, biased)?;
        let out = self.last(act, act.outputs[0])?;
        let mut products = vec![];
        for (&weight, &bias) in weights.iter().zip(&biases) {
            products.push(Product { x: self.input(node, node.inputs[0], weight, 0)?, weight, bias, out });
        }
        let products: [Product; 2] = products.try_into().map_err(|_| ()).expect("two of each");
        let (kernel, reason) = self.product_reason(&products[0].x);
        let out = match next.filter(|next| self.takes_blocks(act, next)) {
            Some(_) => {
                // Behind the blocks that the products read.
                let before = match products[0].x {
                    Input::Quantised { at, rows } => {
                        at - self.scratch_at + rows.rows * (rows.width / BLOCK) * BLOCK_WORDS
                    }
                    Input::Exact(_) => 0,
                };
                let per_row = out.width / BLOCK;
                let at = self.scratch(before + out.rows * per_row * BLOCK_WORDS) + before;
                self.quantised = Some((act.outputs[0], at));
                GatedOutput::Blocks { at, per_row }
            }
            None => GatedOutput::Rows(out),
        };
        self.select(node, format!("gated_{kernel}"), format!("{reason}; gated where they are made"));
        self.push(Step::Gated(GatedStep { products, op: gated_op(*activation), out }));
        Ok(())
    }

    /// Whether a node is all that reads what another gives, and in blocks.
    fn takes_blocks(&self, act: &Node, next: &Node) -> bool {
        let weights = match &next.op {
            Op::MatMul => &next.inputs[1..2],
            Op::MatMuls { biased } => &next.inputs[1..=biased.len()],
            _ => return false,
        };
        let quantised = |id| self.resolver.graph.value(id).dtype.is_quantised();
        self.precision != Precision::Exact
            && next.inputs[0] == act.outputs[0]
            && self.resolver.graph.uses()[act.outputs[0].0 as usize] == 1
            && weights.iter().all(|id| quantised(*id))
    }
}
