//! Two products and the gated activation of both as one step.

use graph::backend::{DeviceError, Precision};
use graph::{Graph, Node, ValueId};
use tensor::Op;

use crate::quant::BLOCK;

use super::super::gated::{GatedOutput, GatedStep};
use super::super::steps::{Input, Product, Step};
use super::{BLOCK_WORDS, Compiler, gated_op};

/// Groups of nodes: two products of one input, with siblings or with chosen experts, whose results the next node gates, and
/// nobody else reads.
pub(super) fn groups(graph: &Graph) -> Vec<Vec<usize>> {
    let uses = graph.uses();
    let gated = |products: &[ValueId], act: &Node| {
        matches!(act.op, Op::GatedActivate(_))
            && products == act.inputs
            && products.iter().all(|id| uses[id.0 as usize] == 1)
    };
    let group = |at: usize| match &graph.nodes[at..] {
        [siblings, act, ..]
            if matches!(&siblings.op, Op::MatMuls { biased } if biased.len() == 2)
                && gated(&siblings.outputs, act) =>
        {
            Some(vec![at, at + 1])
        }
        [gate, up, act, ..] if gate.op == Op::ExpertMatMul && up.op == Op::ExpertMatMul => {
            let alike = [0, 2].iter().all(|i| gate.inputs[*i] == up.inputs[*i]);
            (alike && gated(&[gate.outputs[0], up.outputs[0]], act)).then(|| vec![at, at + 1, at + 2])
        }
        _ => None,
    };
    (0..graph.nodes.len()).filter_map(group).collect()
}

impl Compiler<'_> {
    /// The step of such a group. What follows decides what it leaves.
    pub(super) fn gated(&mut self, group: &[Node], next: Option<&Node>) -> Result<(), DeviceError> {
        let [node, .., act] = group else { unreachable!("a group is products and what gates them") };
        let Op::GatedActivate(activation) = act.op else { unreachable!("the last one gates") };
        let (weights, biases) = match &node.op {
            Op::MatMuls { biased } => self.siblings(node, biased)?,
            _ => {
                let weights: Result<_, _> =
                    group[..2].iter().map(|node| self.matrix(node, node.inputs[1])).collect();
                (weights?, vec![None; 2])
            }
        };
        let choice = match node.op {
            Op::ExpertMatMul => Some(self.choice(node, weights[0])?),
            _ => None,
        };
        let out = self.last(act, act.outputs[0])?;
        let mut products = vec![];
        for (&weight, &bias) in weights.iter().zip(&biases) {
            products.push(Product { x: self.input(node, node.inputs[0], weight)?, weight, bias, out });
        }
        let products: [Product; 2] = products.try_into().map_err(|_| ()).expect("two of each");
        let (kernel, reason) = self.product_reason(&products[0].x);
        let out = match next.filter(|next| self.takes_blocks(act, next)) {
            Some(_) => {
                // Behind the blocks that the products read.
                let before = match products[0].x {
                    Input::Quantised { at, rows } => {
                        at - self.scratch.at + rows.rows * (rows.width / BLOCK) * BLOCK_WORDS
                    }
                    Input::Exact(_) => 0,
                };
                let per_row = out.width / BLOCK;
                let at = self.scratch.room(before + out.rows * per_row * BLOCK_WORDS) + before;
                self.quantised = Some((act.outputs[0], at));
                GatedOutput::Blocks { at, per_row }
            }
            None => GatedOutput::Rows(out),
        };
        let (prefix, grouped) = if choice.is_some() { ("expert_", "; rows by expert") } else { ("", "") };
        self.select(
            node,
            format!("{prefix}gated_{kernel}"),
            format!("{reason}{grouped}; gated where they are made"),
        );
        self.push(Step::Gated(GatedStep { products, op: gated_op(activation), choice, out }));
        Ok(())
    }

    /// Whether a node is all that reads what another gives, and in blocks.
    fn takes_blocks(&self, act: &Node, next: &Node) -> bool {
        let weights = match &next.op {
            Op::MatMul | Op::ExpertMatMul => &next.inputs[1..2],
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
