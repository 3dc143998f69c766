//! Operands as kernels take them, or why they cannot.

use graph::backend::DeviceError;
use graph::{Node, ValueId};

use super::Compiler;
use crate::attention::KvLayout;
use crate::backend::operand::{Place, RowsArg};
use crate::backend::state::kv_layout;

impl Compiler<'_> {
    pub(super) fn rows(&self, node: &Node, id: ValueId, width: usize) -> Result<RowsArg, DeviceError> {
        match self.resolver.rows(id, width) {
            Some(rows) => Ok(rows),
            None => {
                let layout = self.resolver.graph.value(id).layout;
                self.unsupported(
                    node,
                    format!("an operand {layout:?} is not rows of {width} that a kernel can walk"),
                )
            }
        }
    }

    /// The value as rows of its last axis.
    pub(super) fn last(&self, node: &Node, id: ValueId) -> Result<RowsArg, DeviceError> {
        self.rows(node, id, self.resolver.shape(id).last())
    }

    /// Values of one shape as rows of one width: everything after the first axis where all can be walked so, else the
    /// last axis.
    pub(super) fn alike<const N: usize>(
        &self,
        node: &Node,
        ids: [ValueId; N],
    ) -> Result<[RowsArg; N], DeviceError> {
        let shape = self.resolver.shape(ids[0]);
        let outer = shape.dims().iter().skip(1).product();
        let width = match ids.iter().all(|id| shape.rank() > 1 && self.resolver.rows(*id, outer).is_some()) {
            true => outer,
            false => shape.last(),
        };
        let mut rows = Vec::with_capacity(N);
        for id in ids {
            rows.push(self.rows(node, id, width)?);
        }
        Ok(rows.try_into().unwrap_or_else(|_| unreachable!("one for each value")))
    }

    /// The value as rows of everything after its first axis.
    pub(super) fn outer(&self, node: &Node, id: ValueId) -> Result<RowsArg, DeviceError> {
        self.rows(node, id, self.resolver.shape(id).dims().iter().skip(1).product())
    }

    /// The weight that is all of the value's storage, and whose elements the value has in order.
    pub(super) fn weight(&self, node: &Node, id: ValueId) -> Result<Option<usize>, DeviceError> {
        let graph = self.resolver.graph;
        let (layout, whole) = (graph.value(id).layout, graph.value(graph.base(id)).layout.shape.elements());
        match self.resolver.weight(id) {
            Some(w) if layout.offset > 0 || !layout.is_contiguous() || layout.shape.elements() != whole => {
                self.unsupported(node, format!("weight `{}` must be taken as a whole", self.weights[w].name))
            }
            weight => Ok(weight),
        }
    }

    pub(super) fn elements(&self, node: &Node, id: ValueId) -> Result<usize, DeviceError> {
        match self.weight(node, id)? {
            Some(w) => self.unpacked(node, w),
            None => self.unsupported(node, "this operand must be a weight"),
        }
    }

    /// The weight, if it is elements in order.
    pub(super) fn unpacked(&self, node: &Node, w: usize) -> Result<usize, DeviceError> {
        if self.weights[w].layout == graph::backend::WeightUse::Elements {
            return Ok(w);
        }
        self.unsupported(node, format!("weight `{}` is both a matrix and elements", self.weights[w].name))
    }

    pub(super) fn matrix(&self, node: &Node, id: ValueId) -> Result<usize, DeviceError> {
        match self.weight(node, id)? {
            Some(w) if self.weights[w].shape != self.resolver.shape(id) => {
                let (name, shape) = (&self.weights[w].name, self.weights[w].shape);
                self.unsupported(node, format!("weight `{name}` was packed as {shape}"))
            }
            Some(w) => Ok(w),
            None => self.unsupported(node, "the matrix must be a weight"),
        }
    }

    pub(super) fn state(&self, node: &Node) -> Result<usize, DeviceError> {
        let operand = node.op.state_operand().map(|i| node.inputs[i]);
        match operand.and_then(|id| self.resolver.state(id)) {
            Some(state) => Ok(state),
            None => self.unsupported(node, "the state operand must be a state port"),
        }
    }

    /// The cache of an op whose first operand is as wide as keys are, and its layout.
    pub(super) fn kv(&mut self, node: &Node) -> Result<(usize, KvLayout), DeviceError> {
        let state = self.state(node)?;
        let k_dim = self.resolver.shape(node.inputs[0]).last();
        let info = &mut self.states[state];
        let Some(layout) = kv_layout(info.dtype, info.shape, k_dim) else {
            return self.unsupported(node, "keys and values must have elements");
        };
        let known = *info.k_dim.get_or_insert(k_dim);
        if known != k_dim {
            return self.unsupported(
                node,
                format!("its keys have {k_dim} elements and those of another op on this cache {known}"),
            );
        }
        Ok((state, layout))
    }

    /// Notes the extents of the sequences, of which a step has one array.
    pub(super) fn extents(&mut self, node: &Node, id: ValueId) -> Result<(), DeviceError> {
        let arg = self.vector(node, id)?;
        let Place::Input(at) = arg.at else { return self.unsupported(node, "extents must be an input") };
        let new = (at, arg.rows, arg.bound.map(|(scalar, _)| scalar));
        if *self.extents.get_or_insert(new) != new {
            return self.unsupported(node, "a step has one array of extents");
        }
        Ok(())
    }

    pub(super) fn bound(&self, id: ValueId) -> Option<(usize, usize)> {
        self.resolver.graph.value(id).bound.map(|b| (b.0 as usize, 1))
    }

    /// Rows of ids, which kernels read as one run of words.
    pub(super) fn words(&self, node: &Node, id: ValueId) -> Result<RowsArg, DeviceError> {
        let rows = self.last(node, id)?;
        if rows.rows > 1 && rows.stride != rows.width {
            let (width, stride) = (rows.width, rows.stride);
            return self.unsupported(
                node,
                format!("rows of {width} ids must be adjacent, these start {stride} apart"),
            );
        }
        Ok(rows)
    }

    /// A one-axis operand as rows of one element.
    pub(super) fn vector(&self, node: &Node, id: ValueId) -> Result<RowsArg, DeviceError> {
        let whole = self.words(node, id)?;
        Ok(RowsArg { rows: whole.width, width: 1, stride: 1, bound: self.bound(id), ..whole })
    }
}
