//! Drawing tokens on the device, so that a step can be submitted before the tokens of the one before it are read.

use std::panic::Location;

use tensor::ops::Operand;
use tensor::{DType, Layout, Op, Shape};

use super::refresh;
use crate::graph::{Graph, Node, NodeId, Port, PortId, PortKind, ScalarId, Source, Value, ValueId};

/// The state that holds, for each slot, the token drawn last.
pub const DRAWN: &str = "drawn";
/// The output that [`draw_tokens`] adds: for each row of logits the token, as [`Op::Sample`] gives it.
pub const TOKENS: &str = "tokens";
/// The inputs that [`draw_tokens`] adds, as [`Op::Sample`] names them; one of them is f32.
pub const POLICY: [(&str, DType); 6] = [
    ("into", DType::U32),
    ("uniform", DType::U32),
    ("sharpness", DType::F32),
    ("top_k", DType::U32),
    ("top_p", DType::U32),
    ("min_p", DType::U32),
];

/// Makes a recorded step draw tokens: its input of this name (`ids`) may name slots ([`Op::Feed`]), and a token is drawn from
/// every row of its output `logits` ([`Op::Sample`]) into one of `slots` slots. All else stays as it is.
///
/// # Errors
/// The graph has no such input and output, or uses one of the names that are added.
#[track_caller]
pub fn draw_tokens(graph: &mut Graph, ids: &str, logits: &str, slots: usize) -> Result<(), String> {
    let site = Location::caller();
    let port = |name: &str, kind: PortKind, rank: usize| {
        let port = graph.find_port(name).map(|id| graph.port(id));
        match port.filter(|p| p.kind == kind && p.shape.rank() == rank) {
            Some(port) => Ok(port.value),
            None => Err(format!("the step has no {kind} `{name}` of {rank} axes")),
        }
    };
    let (ids, logits) = (port(ids, PortKind::Input, 1)?, port(logits, PortKind::Output, 2)?);
    let names = POLICY.iter().map(|(name, _)| *name).chain([DRAWN, TOKENS]);
    if let Some(name) = names.into_iter().find(|name| graph.find_port(name).is_some()) {
        return Err(format!("the step has a port `{name}` already"));
    }
    let (rows, outs) = (graph.value(logits).layout.shape.dims()[0], graph.value(logits).bound);
    let slots = Shape::new(&[slots]).map_err(|e| e.to_string())?;
    let row = Shape::new(&[rows]).map_err(|e| e.to_string())?;

    let drawn = add_port(graph, DRAWN, PortKind::State, DType::U32, slots, None);
    let fed = add_node(graph, Op::Feed, vec![ids, drawn], site)?;
    // The node goes to the front, and everything reads what it gives.
    graph.nodes.rotate_right(1);
    let readers = graph.nodes[1..].iter_mut().flat_map(|n| &mut n.inputs);
    readers.filter(|id| **id == ids).for_each(|id| *id = fed);
    let views = graph.values.iter_mut().filter(|v| v.source == Source::View(ids));
    views.for_each(|view| view.source = Source::View(fed));
    let mut operands = vec![logits, drawn];
    for (name, dtype) in POLICY {
        operands.push(add_port(graph, name, PortKind::Input, dtype, row, outs));
    }
    let tokens = add_node(graph, Op::Sample, operands, site)?;
    graph.ports.push(Port {
        name: TOKENS.to_owned(),
        kind: PortKind::Output,
        dtype: DType::U32,
        shape: row,
        value: tokens,
    });
    refresh(graph);
    Ok(())
}

fn add_port(
    graph: &mut Graph,
    name: &str,
    kind: PortKind,
    dtype: DType,
    shape: Shape,
    bound: Option<ScalarId>,
) -> ValueId {
    let (port, value) = (PortId(graph.ports.len() as u32), ValueId(graph.values.len() as u32));
    let source = Source::Port(port);
    graph.values.push(Value { dtype, layout: Layout::contiguous(shape), source, bound });
    graph.ports.push(Port { name: name.to_owned(), kind, dtype, shape, value });
    value
}

/// Adds a node with one result, which has the bound of its first operand.
fn add_node(
    graph: &mut Graph,
    op: Op,
    inputs: Vec<ValueId>,
    site: &'static Location<'static>,
) -> Result<ValueId, String> {
    let operand = |id: &ValueId| {
        let value = graph.value(*id);
        Operand { dtype: value.dtype, shape: value.layout.shape }
    };
    let operands: Vec<Operand> = inputs.iter().map(operand).collect();
    let result = op.infer(&operands).map_err(|e| format!("{}: {e}", op.name()))?[0];
    let (value, node) = (ValueId(graph.values.len() as u32), NodeId(graph.nodes.len() as u32));
    let bound = graph.value(inputs[0]).bound;
    let layout = Layout::contiguous(result.shape);
    graph.values.push(Value { dtype: result.dtype, layout, source: Source::Node(node, 0), bound });
    graph.nodes.push(Node { op, inputs, outputs: vec![value], site });
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    fn step() -> Graph {
        let b = Builder::new();
        let (rows, outs) = (b.scalar("rows"), b.scalar("outs"));
        let table = b.weight("table", DType::F32, &[10, 4]);
        let x = b.gather(table, b.input("ids", DType::U32, &[6], Some(rows)));
        let x = b.gather(x, b.input("out_rows", DType::U32, &[2], Some(outs)));
        b.output("logits", b.matmul(x, table));
        b.finish().unwrap()
    }

    #[test]
    fn a_step_reads_and_draws_tokens() {
        let mut graph = step();
        draw_tokens(&mut graph, "ids", "logits", 3).unwrap();
        let names: Vec<_> = graph.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["feed", "gather", "gather", "matmul", "sample"]);
        let fed = graph.nodes[0].outputs[0];
        assert_eq!(graph.nodes[1].inputs[1], fed);
        assert_eq!(graph.value(fed).source, Source::Node(NodeId(0), 0));
        assert_eq!(graph.value(graph.nodes[3].outputs[0]).source, Source::Node(NodeId(3), 0));
        let port = |name: &str| graph.port(graph.find_port(name).unwrap());
        assert_eq!((port(DRAWN).kind, port(DRAWN).shape.dims()), (PortKind::State, &[3][..]));
        assert_eq!((port(TOKENS).dtype, port(TOKENS).value), (DType::U32, graph.nodes[4].outputs[0]));
        let outs = graph.value(port("logits").value).bound;
        assert!(outs.is_some() && graph.value(port(TOKENS).value).bound == outs);
        assert_eq!(graph.value(fed).bound, graph.value(port("ids").value).bound);
        // Logits are still there to be read.
        assert_eq!(port("logits").value, graph.nodes[3].outputs[0]);
    }

    #[test]
    fn what_cannot_draw_says_why() {
        let mut twice = step();
        draw_tokens(&mut twice, "ids", "logits", 3).unwrap();
        assert_eq!(
            draw_tokens(&mut twice, "ids", "logits", 3).unwrap_err(),
            "the step has a port `into` already"
        );
        let b = Builder::new();
        b.output("logits", b.scale(b.input("x", DType::F32, &[2, 2], None), 2.0));
        let mut other = b.finish().unwrap();
        let before = other.ports.len();
        assert_eq!(
            draw_tokens(&mut other, "ids", "logits", 3).unwrap_err(),
            "the step has no input `ids` of 1 axes"
        );
        assert_eq!(other.ports.len(), before);
    }
}
