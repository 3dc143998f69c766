//! Cutting a recorded step into parts for several devices.

use std::collections::HashMap;

use crate::graph::{Graph, Node, NodeId, Port, PortId, PortKind, ScalarId, Source, Value, ValueId};

/// Cuts a graph behind the nodes that give the outputs `at`, in this order: as many parts and one more. A part has the
/// nodes between two cuts and the ports they use; what it takes of the part before it is that output alone, which is an
/// input of the same name. Run one after another the parts compute what the whole does, operation for operation.
///
/// # Errors
/// There is no such output, an output is not computed, those to cut at are not in the order of the computation, or a later
/// part uses another value of an earlier one.
pub fn cut(graph: &Graph, at: &[&str]) -> Result<Vec<Graph>, String> {
    let mut bounds = vec![];
    for name in at {
        let port = graph.find_port(name).map(|id| graph.port(id)).filter(|p| p.kind == PortKind::Output);
        let port = port.ok_or_else(|| format!("the graph has no output `{name}` to be cut at"))?;
        let Source::Node(node, _) = graph.value(graph.base(port.value)).source else {
            return Err(format!("output `{name}` is not computed"));
        };
        if !graph.value(port.value).layout.is_contiguous() || graph.base(port.value) != port.value {
            return Err(format!("output `{name}` is a view"));
        }
        bounds.push((node.0 as usize + 1, port));
    }
    if let Some(pair) = bounds.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        return Err(format!("output `{}` is computed before `{}`", pair[1].1.name, pair[0].1.name));
    }
    let mut parts = vec![];
    let mut before: Option<(usize, &Port)> = None;
    for next in bounds.into_iter().map(Some).chain([None]) {
        let start = before.map_or(0, |(end, _)| end);
        let end = next.map_or(graph.nodes.len(), |(end, _)| end);
        let mut part = Part::new(graph, before.map(|(_, port)| port));
        for node in &graph.nodes[start..end] {
            part.node(node)?;
        }
        part.outputs(start..end)?;
        parts.push(part.graph);
        before = next;
    }
    Ok(parts)
}

/// One part being made.
struct Part<'g> {
    whole: &'g Graph,
    /// What the part takes of the one before it.
    given: Option<&'g Port>,
    graph: Graph,
    values: HashMap<ValueId, ValueId>,
    scalars: HashMap<ScalarId, ScalarId>,
}

impl<'g> Part<'g> {
    fn new(whole: &'g Graph, given: Option<&'g Port>) -> Part<'g> {
        let graph = Graph { values: vec![], nodes: vec![], ports: vec![], scalars: vec![] };
        Part { whole, given, graph, values: HashMap::new(), scalars: HashMap::new() }
    }

    fn node(&mut self, node: &Node) -> Result<(), String> {
        let inputs = node.inputs.iter().map(|id| self.operand(*id)).collect::<Result<Vec<_>, _>>();
        let inputs = inputs.map_err(|problem| {
            format!("{} at {}:{} {problem}", node.op.name(), node.site.file(), node.site.line())
        })?;
        let at = NodeId(self.graph.nodes.len() as u32);
        let outputs = (0..).zip(&node.outputs).map(|(i, id)| self.value(*id, Source::Node(at, i))).collect();
        self.graph.nodes.push(Node { op: node.op.clone(), inputs, outputs, site: node.site });
        Ok(())
    }

    fn operand(&mut self, id: ValueId) -> Result<ValueId, String> {
        if let Some(known) = self.values.get(&id) {
            return Ok(*known);
        }
        match self.whole.value(id).source {
            Source::View(base) => {
                let base = self.operand(base)?;
                Ok(self.value(id, Source::View(base)))
            }
            Source::Port(port) => {
                let Port { name, kind, .. } = self.whole.port(port);
                Ok(self.port(id, name, *kind))
            }
            Source::Node(..) => match self.given.filter(|port| port.value == id) {
                Some(port) => Ok(self.port(id, &port.name, PortKind::Input)),
                None => Err(format!(
                    "uses a value of a part before it, which gives {}",
                    self.given.map_or("nothing".to_owned(), |port| format!("`{}` alone", port.name))
                )),
            },
        }
    }

    fn value(&mut self, id: ValueId, source: Source) -> ValueId {
        let Value { dtype, layout, bound, .. } = self.whole.value(id).clone();
        let bound = bound.map(|scalar| self.scalar(scalar));
        let new = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(Value { dtype, layout, source, bound });
        self.values.insert(id, new);
        new
    }

    fn port(&mut self, id: ValueId, name: &str, kind: PortKind) -> ValueId {
        let port = PortId(self.graph.ports.len() as u32);
        let value = self.value(id, Source::Port(port));
        let Value { dtype, layout, .. } = &self.graph.values[value.0 as usize];
        let (name, dtype, shape) = (name.to_owned(), *dtype, layout.shape);
        self.graph.ports.push(Port { name, kind, dtype, shape, value });
        value
    }

    fn scalar(&mut self, id: ScalarId) -> ScalarId {
        let scalars = &mut self.graph.scalars;
        *self.scalars.entry(id).or_insert_with(|| {
            scalars.push(self.whole.scalars[id.0 as usize].clone());
            ScalarId(scalars.len() as u32 - 1)
        })
    }

    /// The outputs of the whole that nodes of this part give.
    fn outputs(&mut self, nodes: std::ops::Range<usize>) -> Result<(), String> {
        for port in self.whole.ports.iter().filter(|p| p.kind == PortKind::Output) {
            let Source::Node(node, _) = self.whole.value(self.whole.base(port.value)).source else {
                return Err(format!("output `{}` is not computed", port.name));
            };
            if nodes.contains(&(node.0 as usize)) {
                let value = self.operand(port.value)?;
                self.graph.ports.push(Port { value, ..port.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use tensor::DType;
    use tensor::ops::Activation;

    /// Two layers over a table, a shared scalar and weights of their own; the table is used at both ends.
    fn model(leak: bool) -> Graph {
        let b = Builder::new();
        let (rows, outs) = (b.scalar("rows"), b.scalar("outs"));
        let table = b.weight("table", DType::F32, &[10, 4]);
        let mut x = b.gather(table, b.input("ids", DType::U32, &[6], Some(rows)));
        let first = x;
        for layer in 0..2 {
            b.output(&format!("hidden.{layer}"), x);
            let w = b.weight(&format!("w.{layer}"), DType::F32, &[4, 4]);
            let y = b.activate(Activation::Silu, b.matmul(b.reshape(x, &[6, 4]), w));
            x = b.add(x, y);
        }
        b.output("hidden.2", x);
        let x = if leak { b.add(x, first) } else { x };
        let x = b.gather(x, b.input("out_rows", DType::U32, &[2], Some(outs)));
        b.output("logits", b.matmul(x, table));
        b.finish().unwrap()
    }

    fn ports(graph: &Graph, kind: PortKind) -> Vec<&str> {
        graph.ports.iter().filter(|p| p.kind == kind).map(|p| p.name.as_str()).collect()
    }

    #[test]
    fn parts_have_what_they_use_and_pass_on_one_value() {
        let whole = model(false);
        let parts = cut(&whole, &["hidden.1", "hidden.2"]).unwrap();
        let have: Vec<_> = parts
            .iter()
            .map(|g| [PortKind::Input, PortKind::Weight, PortKind::Output].map(|kind| ports(g, kind)))
            .collect();
        assert_eq!(have[0], [vec!["ids"], vec!["table", "w.0"], vec!["hidden.0", "hidden.1"]]);
        assert_eq!(have[1], [vec!["hidden.1"], vec!["w.1"], vec!["hidden.2"]]);
        assert_eq!(have[2], [vec!["hidden.2", "out_rows"], vec!["table"], vec!["logits"]]);
        assert_eq!(
            parts.iter().map(|g| g.scalars.join(" ")).collect::<Vec<_>>(),
            ["rows", "rows", "rows outs"]
        );
        assert_eq!(parts.iter().map(|g| g.nodes.len()).sum::<usize>(), whole.nodes.len());
        // What is given has the bound of what gives it, and views lie on it.
        let given = parts[1].port(parts[1].find_port("hidden.1").unwrap());
        assert_eq!(given.shape.dims(), [6, 4]);
        assert_eq!(parts[1].value(given.value).bound, Some(ScalarId(0)));
        assert_eq!(parts[1].base(parts[1].nodes[0].inputs[0]), given.value);
        for part in &parts {
            for (at, node) in part.nodes.iter().enumerate() {
                for (i, id) in node.outputs.iter().enumerate() {
                    assert_eq!(part.value(*id).source, Source::Node(NodeId(at as u32), i as u32));
                }
            }
        }
        // No cut is the whole.
        assert_eq!(cut(&whole, &[]).unwrap()[0].nodes.len(), whole.nodes.len());
    }

    #[test]
    fn outputs_nobody_wants_are_dropped() {
        let mut graph = model(false);
        graph.retain_outputs(|name| name == "logits" || name == "hidden.1");
        assert_eq!(ports(&graph, PortKind::Output), ["hidden.1", "logits"]);
        for (i, port) in graph.ports.iter().enumerate().filter(|(_, p)| p.kind != PortKind::Output) {
            assert_eq!(graph.value(port.value).source, Source::Port(PortId(i as u32)), "{}", port.name);
        }
    }

    #[test]
    fn what_cannot_be_cut_says_why() {
        let whole = model(false);
        assert!(cut(&whole, &["hidden.7"]).unwrap_err().contains("no output `hidden.7`"));
        let order = cut(&whole, &["hidden.2", "hidden.1"]).unwrap_err();
        assert!(order.contains("`hidden.1` is computed before `hidden.2`"), "{order}");
        let leak = cut(&model(true), &["hidden.1"]).unwrap_err();
        assert!(leak.starts_with("add at ") && leak.contains("`hidden.1` alone"), "{leak}");
    }
}
