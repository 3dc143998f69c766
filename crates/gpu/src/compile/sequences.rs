//! Ops that know about sequences: rotation, cache, attention, routing, convolution.

use graph::Node;
use graph::backend::DeviceError;
use tensor::ops::KV_BLOCK;
use tensor::{DType, Op};

use super::{Arg, Compiler, Use};
use crate::fuse::RopeKv;
use crate::operand::counts;
use crate::select::{self, KvKernel, SPLIT};

impl Compiler<'_> {
    pub(super) fn rope(&mut self, node: &Node, magnitude: f32) -> Result<(), DeviceError> {
        let table = self.rope_table(node, magnitude)?;
        let (x, out) = (self.outer(node, node.inputs[0])?, self.outer(node, node.outputs[0])?);
        let head_dim = self.resolver.shape(node.inputs[0]).last();
        let half = self.resolver.shape(node.inputs[2]).elements();
        let heads = x.width / head_dim.max(1);
        let mut params = counts(&out).to_vec();
        params.extend(
            [heads, head_dim, half, x.at, x.stride, head_dim, out.at, out.stride, head_dim, table]
                .map(|v| v as u32),
        );
        let grid = [(heads * (head_dim - half)).div_ceil(64), out.rows, 1];
        let reason = "angles by the host, in f64";
        self.push(node, &select::rope(), reason, params, vec![], grid, Use::None)
    }

    /// What kernels know of the cache: its heads and rows, and blocks and entries of the page table.
    fn cache(&self, node: &Node, k_dim: usize) -> Result<(usize, KvKernel, usize, [usize; 2]), DeviceError> {
        let state = self.state(node)?;
        let id = node.inputs[node.op.state_operand().unwrap_or(0)];
        let value = self.resolver.graph.value(id);
        let half = match value.dtype {
            DType::F32 => false,
            DType::F16 => true,
            other => {
                return self.unsupported(node, format!("a KV cache of {other}, only ones of F32 and F16"));
            }
        };
        let dims = value.layout.shape.dims();
        let pages = node.op.roles().iter().position(|r| *r == "pages").map(|i| node.inputs[i]);
        let table = pages.map_or(0, |id| self.resolver.shape(id).last());
        let kernel = KvKernel { half, k_dim, v_dim: dims[3] - k_dim };
        Ok((state, kernel, dims[2], [dims[0], table]))
    }

    pub(super) fn kv_write(&mut self, node: &Node) -> Result<(), DeviceError> {
        let k_dim = self.resolver.shape(node.inputs[0]).last();
        let (state, kernel, heads, [blocks, table]) = self.cache(node, k_dim)?;
        let (k, v) = (self.outer(node, node.inputs[0])?, self.outer(node, node.inputs[1])?);
        let (pos, pages, seq) =
            (self.words(node, node.inputs[3])?, self.words(node, node.inputs[5])?, self.seq(node)?);
        let mut params = counts(&k).to_vec();
        params.extend([heads, blocks, table, k.at, k.stride, v.at, v.stride].map(|v| v as u32));
        params.extend([pos, seq, pages]);
        let grid = [heads, k.rows, 1];
        let args = vec![Arg::State(state)];
        self.push(node, &select::kv_write(kernel), "paged cache", params, args, grid, Use::None)
    }

    /// What [`rope`](Self::rope), [`kv_write`](Self::kv_write) and norms before them do, in one kernel.
    pub(super) fn rope_kv(&mut self, group: &RopeKv) -> Result<(), DeviceError> {
        let nodes = &self.resolver.graph.nodes;
        let node = &nodes[group.write];
        let ropes = group.ropes.map(|at| &nodes[at]);
        let k_dim = self.resolver.shape(node.inputs[0]).last();
        let (state, kernel, kv_heads, [blocks, table]) = self.cache(node, k_dim)?;
        let Op::Rope { magnitude } = ropes[0].op else { return self.unsupported(node, "no rotation") };
        let angles = self.rope_table(ropes[0], magnitude)?;
        let half = self.resolver.shape(ropes[0].inputs[2]).elements();
        let (out, v) = (self.outer(ropes[0], ropes[0].outputs[0])?, self.outer(node, node.inputs[1])?);
        let [q, k] = group.norms.unwrap_or(group.ropes).map(|at| self.outer(&nodes[at], nodes[at].inputs[0]));
        let (q, k) = (q?, k?);
        let (pos, pages, seq) =
            (self.words(node, node.inputs[3])?, self.words(node, node.inputs[5])?, self.seq(node)?);
        let heads = q.width / k_dim.max(1);
        let mut params = counts(&out).to_vec();
        params.extend([heads, kv_heads, blocks, table, half].map(|v| v as u32));
        params.extend([q.at, q.stride, k.at, k.stride, v.at, v.stride, out.at, out.stride].map(|v| v as u32));
        params.extend([pos, seq, pages, angles as u32]);
        let (mut args, mut gains, mut eps) = (vec![Arg::State(state)], vec![], [0.0; 2]);
        for (i, at) in group.norms.into_iter().flatten().enumerate() {
            let Op::RmsNorm { eps: own } = nodes[at].op else { return self.unsupported(node, "no norm") };
            let weight = self.elements(&nodes[at], nodes[at].inputs[1])?;
            gains.push((weight, params.len() + i));
            args.push(Arg::Elements(weight));
            eps[i] = own;
        }
        params.extend([0, 0, eps[0].to_bits(), eps[1].to_bits(), k_dim as u32]);
        let grid = [heads + kv_heads, out.rows, 1];
        let kernel = select::rope_kv(&self.gpu.capabilities, kernel, group.norms.is_some());
        let reason = "rotation and paged cache in one, a workgroup a row and head";
        let gains = if gains.is_empty() { Use::None } else { Use::Elements(gains) };
        self.push(node, &kernel, reason, params, args, grid, gains)
    }

    pub(super) fn attention(
        &mut self,
        node: &Node,
        scale: f32,
        window: Option<u32>,
        softcap: Option<f32>,
    ) -> Result<(), DeviceError> {
        let shape = self.resolver.shape(node.inputs[0]);
        let (heads, k_dim) = (shape.dims()[1], shape.last());
        let (state, kernel, kv_heads, [blocks, table]) = self.cache(node, k_dim)?;
        let (q, out) = (self.outer(node, node.inputs[0])?, self.outer(node, node.outputs[0])?);
        let splits = (table * KV_BLOCK).div_ceil(SPLIT).max(1);
        // As for products, a page cannot wait.
        #[cfg(target_arch = "wasm32")]
        let agree = || Ok(true);
        #[cfg(not(target_arch = "wasm32"))]
        let agree = || crate::agreement::attention(self.gpu, kernel);
        let (split, reason) = select::splits_attention(&self.gpu.capabilities, out.rows, splits, agree)?;
        let step = [2, 3, 5].map(|i| self.words(node, node.inputs[i]));
        let [pos, until, pages] = [step[0].clone()?, step[1].clone()?, step[2].clone()?];
        let window = window.unwrap_or(u32::MAX);
        let mut params = counts(&out).to_vec();
        params.extend(
            [heads, heads / kv_heads, blocks, table, splits, q.at, q.stride, out.at, out.stride]
                .map(|v| v as u32),
        );
        params.extend([pos, until, self.seq(node)?, pages, scale.to_bits(), window]);
        params.extend([softcap.unwrap_or(0.0).to_bits(), u32::from(softcap.is_some())]);
        if !split {
            let grid = [1, heads, out.rows];
            let args = vec![Arg::State(state)];
            return self.push(
                node,
                &select::attention(&self.gpu.capabilities, kernel, false),
                reason,
                params,
                args,
                grid,
                Use::None,
            );
        }
        self.parts = self.parts.max(out.rows * heads * splits * (kernel.v_dim + 2));
        let args = vec![Arg::State(state), Arg::Parts];
        let grid = [splits, heads, out.rows];
        self.push(
            node,
            &select::attention(&self.gpu.capabilities, kernel, true),
            reason,
            params,
            args,
            grid,
            Use::None,
        )?;
        let mut params = counts(&out).to_vec();
        params.extend([heads, splits, out.at, out.stride].map(|v| v as u32));
        params.extend([pos, until, window]);
        let grid = [kernel.v_dim.div_ceil(64), heads, out.rows];
        self.push(
            node,
            &select::merge(kernel.v_dim),
            "splits in order",
            params,
            vec![Arg::Parts],
            grid,
            Use::None,
        )
    }

    pub(super) fn route(&mut self, node: &Node, k: usize, renormalise: bool) -> Result<(), DeviceError> {
        let logits = self.last(node, node.inputs[0])?;
        let (weights, ids) = (self.last(node, node.outputs[0])?, self.last(node, node.outputs[1])?);
        let status = self.status.map_or(0, |(at, _)| at);
        let mut params = counts(&logits).to_vec();
        params.extend([logits.width as u32, k as u32, u32::from(renormalise)]);
        params.extend(
            [logits.at, logits.stride, weights.at, weights.stride, ids.at, ids.stride, status]
                .map(|v| v as u32),
        );
        let grid = [logits.rows.div_ceil(64), 1, 1];
        self.push(node, &select::route(), "a row a lane", params, vec![], grid, Use::None)
    }

    pub(super) fn short_conv(&mut self, node: &Node) -> Result<(), DeviceError> {
        let state = self.state(node)?;
        let weight = self.elements(node, node.inputs[1])?;
        let past = self.resolver.shape(node.inputs[2]).dims()[1];
        let (x, out) = (self.last(node, node.inputs[0])?, self.last(node, node.outputs[0])?);
        let step = [3, 4, 5, 6].map(|i| self.words(node, node.inputs[i]));
        let [pos, extents, slots, snap] =
            [step[0].clone()?, step[1].clone()?, step[2].clone()?, step[3].clone()?];
        let Some(start) = self.start_at else {
            return self.unsupported(node, "the extents must be an input");
        };
        let value = self.resolver.graph.value(node.inputs[4]);
        let seqs = value.layout.shape.elements();
        let bound = value.bound.map_or(u32::MAX, |b| b.0);
        let mut params = vec![seqs as u32, bound, 1];
        params.extend([x.width, x.at, x.stride, out.at, out.stride, 0].map(|v| v as u32));
        params.extend([pos, start as u32, extents, slots, snap]);
        let grid = [x.width.div_ceil(64), seqs, 1];
        let fix = Use::Elements(vec![(weight, 8)]);
        let args = vec![Arg::Elements(weight), Arg::State(state)];
        self.push(node, &select::short_conv(past), "a channel a lane", params, args, grid, fix)
    }
}
