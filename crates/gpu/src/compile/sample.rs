//! Drawing tokens, and feeding them back.

use graph::Node;
use graph::backend::DeviceError;

use super::{Arg, Compiler, Use};
use crate::operand::counts;
use crate::select;

impl Compiler<'_> {
    pub(super) fn sample(&mut self, node: &Node) -> Result<(), DeviceError> {
        let state = self.state(node)?;
        let logits = self.last(node, node.inputs[0])?;
        let mut params = counts(&logits).to_vec();
        params.extend([logits.width, logits.at, logits.stride].map(|v| v as u32));
        for id in node.inputs[2..].iter().chain(&node.outputs) {
            params.push(self.words(node, *id)?);
        }
        let grid = [logits.rows, 1, 1];
        let reason = "integer weights, a workgroup a row";
        self.push(node, &select::sample(), reason, params, vec![Arg::State(state)], grid, Use::None)
    }

    pub(super) fn feed(&mut self, node: &Node) -> Result<(), DeviceError> {
        let state = self.state(node)?;
        let (ids, out) = (self.words(node, node.inputs[0])?, self.words(node, node.outputs[0])?);
        let value = self.resolver.graph.value(node.inputs[0]);
        let rows = value.layout.shape.elements();
        let bound = value.bound.map_or(u32::MAX, |b| b.0);
        let params = vec![rows as u32, bound, 1, ids, out];
        let grid = [rows.div_ceil(64), 1, 1];
        let args = vec![Arg::State(state)];
        self.push(node, &select::feed(), "a row a lane", params, args, grid, Use::None)
    }
}
