//! Products with weights.

use graph::backend::{DeviceError, Precision};
use graph::{Node, ValueId};
use tensor::DType;

use super::{Arg, Compiler, Segment, Use};
use crate::pack::BLOCK;
use crate::select;

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
            self.product(node, dtype, &same, None)?;
        }
        Ok(())
    }

    /// Products with matrices of one type; with `experts`, the ids of each row's expert and how many there are.
    fn product(
        &mut self,
        node: &Node,
        dtype: DType,
        matrices: &[(usize, Option<usize>, ValueId)],
        experts: Option<(u32, usize)>,
    ) -> Result<(), DeviceError> {
        let integer = self.precision == Precision::Fast && dtype.is_quantised();
        if integer {
            self.quantise(node, node.inputs[0])?;
        }
        let x = self.last(node, node.inputs[0])?;
        let out = self.last(node, matrices[0].2)?;
        let outputs = matrices.iter().map(|(w, ..)| self.weights[*w].shape.rows()).sum();
        let blocks = x.width.div_ceil(BLOCK);
        let m =
            select::Matmul { dtype, integer, experts: experts.is_some(), rows: out.rows, outputs, blocks };
        let Some(kernel) = select::matmul(&self.gpu.capabilities, m) else {
            return self.unsupported(node, format!("weights of {dtype} have no kernel on this device"));
        };
        let k = x.width;
        let mut params = out.counts().to_vec();
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
        let mut args = vec![Arg::Chunk, Arg::Chunk, Arg::Biases];
        if integer {
            args.extend([Arg::Acts, Arg::Meta]);
        }
        let grid = [1, out.rows.div_ceil(kernel.columns), 1];
        self.push(node, &kernel.kernel, kernel.reason, params, args, grid, Use::Matrices(segments))
    }

    pub(super) fn experts(&mut self, node: &Node) -> Result<(), DeviceError> {
        let weight = self.matrix(node, node.inputs[1])?;
        let (dtype, shape) = (self.weights[weight].dtype, self.weights[weight].shape);
        let &[experts, _, _] = shape.dims() else { return self.unsupported(node, "experts have three axes") };
        let ids = self.words(node, node.inputs[2])?;
        self.product(node, dtype, &[(weight, None, node.outputs[0])], Some((ids, experts)))
    }
}
