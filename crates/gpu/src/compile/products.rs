//! Products with weights.

use graph::backend::{DeviceError, Precision};
use graph::{Node, ValueId};
use tensor::{DType, Op};

use super::{Arg, Compiler, Segment, Use};
use crate::fuse::Gated;
use crate::operand::counts;
use crate::pack::BLOCK;
use crate::select::{self, Elementwise};

impl Compiler<'_> {
    /// Products of one input, a dispatch for each type of weights where their storage allows.
    pub(super) fn products(
        &mut self,
        node: &Node,
        matrices: &[(usize, Option<usize>, ValueId)],
    ) -> Result<(), DeviceError> {
        let mut done = vec![false; matrices.len()];
        for first in 0..matrices.len() {
            if done[first] {
                continue;
            }
            let dtype = self.weights[matrices[first].0].dtype;
            let same: Vec<_> = (first..matrices.len())
                .filter(|i| !done[*i] && self.weights[matrices[*i].0].dtype == dtype)
                .collect();
            same.iter().for_each(|i| done[*i] = true);
            let same: Vec<_> = same.into_iter().map(|i| matrices[i]).collect();
            self.product(node, node.inputs[0], dtype, &same, None, None)?;
        }
        Ok(())
    }

    /// Products of `x` with matrices of one type; with `experts`, the ids of each row's expert and how many there are; with
    /// `up`, the one matrix is a gate: a weight beside it, and how their products are combined.
    fn product(
        &mut self,
        node: &Node,
        x: ValueId,
        dtype: DType,
        matrices: &[(usize, Option<usize>, ValueId)],
        experts: Option<(u32, usize)>,
        up: Option<(usize, Elementwise)>,
    ) -> Result<(), DeviceError> {
        let integer = self.precision == Precision::Fast && dtype.is_quantised();
        if integer {
            self.quantise(node, x)?;
        }
        let x = self.last(node, x)?;
        let out = self.last(node, matrices[0].2)?;
        let outputs = matrices.iter().map(|(w, ..)| self.weights[*w].shape.rows()).sum::<usize>()
            * if up.is_some() { 2 } else { 1 };
        let m = select::Matmul {
            dtype,
            integer,
            experts: experts.is_some(),
            rows: out.rows,
            gate: up.map(|(_, op)| op),
            outputs,
            blocks: x.width.div_ceil(BLOCK),
        };
        // A page cannot wait for what kernels give: there the written order of their sums is all there is to go by.
        #[cfg(target_arch = "wasm32")]
        let agree = |_: &select::Matmul, _: [&select::MatmulKernel; 2]| Ok(true);
        #[cfg(not(target_arch = "wasm32"))]
        let agree = |m: &select::Matmul, pair: [&select::MatmulKernel; 2]| {
            crate::agreement::products(self.gpu, m, pair)
        };
        let Some(kernel) = select::agreed_matmul(&self.gpu.capabilities, m, agree)? else {
            return self.unsupported(node, format!("weights of {dtype} have no kernel on this device"));
        };
        let k = x.width;
        let mut params = counts(&out).to_vec();
        params.extend([k.div_ceil(BLOCK), k, x.at, x.stride, 0, 0, 0].map(|v| v as u32));
        let expert_rows = experts.map(|_| out.width);
        let share = out.rows / x.rows.max(1);
        let (ids, experts) = experts.unwrap_or((0, 1));
        params.extend([ids, out.width as u32, 0, share.max(1) as u32, experts as u32]);
        let mut segments = vec![];
        for (weight, bias, out) in matrices {
            let out = self.last(node, *out)?;
            segments.push(Segment {
                weight: *weight,
                bias: *bias,
                out: [out.at, out.stride],
                rows_per_group: kernel.rows * kernel.tiles,
                expert_rows,
            });
        }
        let mut args = vec![Arg::Chunk, Arg::Chunk];
        args.extend_from_slice(if up.is_some() { &[Arg::Up, Arg::Up] } else { &[Arg::Biases] });
        if integer {
            args.extend([Arg::Acts, Arg::Meta]);
        }
        let grid = [1, out.rows.div_ceil(kernel.columns), 1];
        let (reason, weights) = match up {
            None => (kernel.reason.to_owned(), Use::Matrices(segments)),
            Some((up, _)) => (
                format!("{}, gate, up and activation in one", kernel.reason),
                Use::Gated { gate: segments[0], up },
            ),
        };
        self.push(node, &kernel.kernel, &reason, params, args, grid, weights)
    }

    /// Gate, up and activation in one kernel. The result's codes, which the next product may want, are not among its work:
    /// a block of them spans the tiles of several workgroups.
    pub(super) fn gated(&mut self, group: &Gated) -> Result<(), DeviceError> {
        let nodes = &self.resolver.graph.nodes;
        let (node, product) = (&nodes[group.act], &nodes[group.products[0]]);
        let [gate, up] = group.weights.map(|id| self.matrix(product, id));
        let (gate, up) = (gate?, up?);
        let experts = match product.op {
            Op::ExpertMatMul => Some(self.chosen(product, gate)?),
            _ => None,
        };
        let matrices = [(gate, None, node.outputs[0])];
        let up = Some((up, Elementwise::gated(group.activation)));
        self.product(node, product.inputs[0], self.weights[gate].dtype, &matrices, experts, up)
    }

    /// The ids of each row's expert, and how many there are.
    fn chosen(&self, node: &Node, weight: usize) -> Result<(u32, usize), DeviceError> {
        let &[experts, _, _] = self.weights[weight].shape.dims() else {
            return self.unsupported(node, "experts have three axes");
        };
        Ok((self.words(node, node.inputs[2])?, experts))
    }

    pub(super) fn experts(&mut self, node: &Node) -> Result<(), DeviceError> {
        let weight = self.matrix(node, node.inputs[1])?;
        let experts = self.chosen(node, weight)?;
        let matrices = [(weight, None, node.outputs[0])];
        self.product(node, node.inputs[0], self.weights[weight].dtype, &matrices, Some(experts), None)
    }
}
