//! A graph as people read it: grouped by layers, of which those that are alike are shown once.
//!
//! [`Chart::new`] groups and folds; [`Chart::text`], [`Chart::dot`] and [`Chart::svg`] write.

mod dot;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tensor::{DType, Op};

use crate::graph::{Graph, Node, Port, PortKind, Source, ValueId};

/// A graph in groups.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// What comes before the layers, each kind of layer, what comes after them. None is empty.
    pub groups: Vec<Group>,
    /// The ports that a caller gives or reads: inputs, then outputs, then states.
    pub ports: Vec<ChartPort>,
}

/// A port of the caller's; states of like layers are one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChartPort {
    /// Name, with `N` for the layer.
    pub name: String,
    /// What it is for.
    pub kind: PortKind,
    /// Type and extents.
    pub tensor: String,
    /// How many there are.
    pub count: usize,
}

/// Nodes that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// The layers it stands for, counted from 0; none before and behind the layers.
    pub layers: Vec<usize>,
    /// What it is called.
    pub title: String,
    /// Type and extents of the values that come from before it, [`Operand::Outside`] by index.
    pub outside: Vec<String>,
    /// Its nodes, in execution order.
    pub nodes: Vec<ChartNode>,
}

/// An operation.
#[derive(Clone, PartialEq, Debug)]
pub struct ChartNode {
    /// The op's name.
    pub op: &'static str,
    /// Its parameters, or nothing.
    pub detail: String,
    /// What it reads.
    pub operands: Vec<Operand>,
    /// Type and extents of each result.
    pub results: Vec<String>,
    /// A node of the group that writes the state this one reads: it runs before.
    pub after: Option<usize>,
    /// The output port that shows a result.
    pub output: Option<String>,
}

/// What a node reads.
#[derive(Clone, PartialEq, Debug)]
pub enum Operand {
    /// A result of a node of the group.
    Node {
        /// Index of the node.
        node: usize,
        /// Index of the result.
        result: usize,
        /// Type and extents as it is read, which may be a view.
        tensor: String,
    },
    /// A value of a group before, by index into [`Group::outside`].
    Outside(usize),
    /// A port.
    Port {
        /// Its name, with `N` for the layer where the group stands for several.
        name: String,
        /// What it is for.
        kind: PortKind,
        /// Its types and how many layers have each; one entry in most graphs, several where a file mixes types.
        types: Vec<(DType, usize)>,
        /// Extents.
        extents: String,
    },
}

impl Chart {
    /// Groups a graph. `boundaries` name outputs: the rows before the first layer, before every other, and behind the last,
    /// in this order; they are not shown themselves. No boundaries: one group.
    ///
    /// # Errors
    /// A boundary that is no output, or is not computed in this order.
    pub fn new(graph: &Graph, boundaries: &[&str]) -> Result<Chart, String> {
        let live = live(graph, boundaries);
        let groups = sections(graph, boundaries)?;
        let layers = groups.len().saturating_sub(2);
        let mut folded: Vec<(Group, Vec<Signature>)> = vec![];
        for (index, nodes) in groups.into_iter().enumerate() {
            let layer = (1..=layers).contains(&index).then(|| index - 1);
            let nodes: Vec<usize> = nodes.filter(|n| live[*n]).collect();
            if nodes.is_empty() {
                continue;
            }
            let group = group(graph, &nodes, layer, boundaries);
            let signature: Vec<Signature> = group.nodes.iter().map(signature).collect();
            let like = folded.iter_mut().find(|(known, of)| {
                layer.is_some()
                    && !known.layers.is_empty()
                    && *of == signature
                    && known.outside == group.outside
            });
            match like {
                Some((known, _)) => known.join(group),
                None => folded.push((group, signature)),
            }
        }
        let mut groups: Vec<Group> = folded.into_iter().map(|(group, _)| group).collect();
        let first_layer = groups.iter().position(|g| !g.layers.is_empty());
        for (i, group) in groups.iter_mut().enumerate() {
            group.title = match (group.layers.as_slice(), first_layer) {
                ([], None) => "graph".to_owned(),
                ([], Some(first)) if i < first => "before the layers".to_owned(),
                ([], Some(_)) => "behind the layers".to_owned(),
                ([only], _) => format!("layer {only}"),
                (all, _) => format!("layers {} ({} alike)", ranges(all), all.len()),
            };
        }
        Ok(Chart { groups, ports: ports(graph, boundaries) })
    }
}

impl Group {
    /// Takes in a layer that is alike.
    fn join(&mut self, other: Group) {
        self.layers.extend(other.layers);
        for (node, same) in self.nodes.iter_mut().zip(other.nodes) {
            for (operand, same) in node.operands.iter_mut().zip(same.operands) {
                let (Operand::Port { types, .. }, Operand::Port { types: more, .. }) = (operand, same) else {
                    continue;
                };
                for (dtype, n) in more {
                    match types.iter_mut().find(|(known, _)| *known == dtype) {
                        Some((_, count)) => *count += n,
                        None => types.push((dtype, n)),
                    }
                }
            }
        }
    }
}

/// What layers that are shown as one have in common: all but the types of their weights.
#[derive(PartialEq)]
struct Signature {
    op: String,
    operands: Vec<String>,
    results: Vec<String>,
}

fn signature(node: &ChartNode) -> Signature {
    let operand = |operand: &Operand| match operand {
        Operand::Port { name, kind: PortKind::Weight, extents, .. } => format!("{name} {extents}"),
        other => format!("{other:?}"),
    };
    Signature {
        op: format!("{} {} {:?} {:?}", node.op, node.detail, node.after, node.output),
        operands: node.operands.iter().map(operand).collect(),
        results: node.results.clone(),
    }
}

/// Which nodes something shown depends on.
fn live(graph: &Graph, boundaries: &[&str]) -> Vec<bool> {
    let mut wanted = vec![false; graph.values.len()];
    let shown = graph.ports.iter().filter(|p| p.kind == PortKind::Output);
    for port in shown.filter(|p| !boundaries.contains(&p.name.as_str())) {
        wanted[graph.base(port.value).0 as usize] = true;
    }
    let mut live = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        live[i] = node.op.writes_state() || node.outputs.iter().any(|id| wanted[id.0 as usize]);
        if live[i] {
            node.inputs.iter().for_each(|id| wanted[graph.base(*id).0 as usize] = true);
        }
    }
    live
}

/// The nodes before the first boundary, between each two, and behind the last.
fn sections(graph: &Graph, boundaries: &[&str]) -> Result<Vec<Range<usize>>, String> {
    let mut sections = vec![];
    let mut start = 0;
    for name in boundaries {
        let port = graph.ports.iter().find(|p| p.kind == PortKind::Output && p.name == *name);
        let port = port.ok_or_else(|| format!("the graph has no output `{name}`"))?;
        let Source::Node(node, _) = graph.value(graph.base(port.value)).source else {
            return Err(format!("output `{name}` is not computed"));
        };
        let end = node.0 as usize + 1;
        if end < start {
            return Err(format!("output `{name}` is computed before the one named before it"));
        }
        sections.push(start..end);
        start = end;
    }
    sections.push(start..graph.nodes.len());
    Ok(sections)
}

fn group(graph: &Graph, nodes: &[usize], layer: Option<usize>, boundaries: &[&str]) -> Group {
    let index: HashMap<usize, usize> = nodes.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let mut outside: Vec<(ValueId, String)> = vec![];
    let mut writers: HashMap<ValueId, usize> = HashMap::new();
    let mut shown = vec![];
    for (i, node) in nodes.iter().map(|n| &graph.nodes[*n]).enumerate() {
        let mut operand = |id: &ValueId| match graph.value(graph.base(*id)).source {
            Source::Port(port) => port_operand(graph.port(port), &tensor(graph, *id), layer),
            Source::Node(from, result) => match index.get(&(from.0 as usize)) {
                Some(node) => {
                    Operand::Node { node: *node, result: result as usize, tensor: tensor(graph, *id) }
                }
                None => {
                    let known = outside.iter().position(|(known, _)| known == id);
                    Operand::Outside(known.unwrap_or_else(|| {
                        outside.push((*id, tensor(graph, *id)));
                        outside.len() - 1
                    }))
                }
            },
            // `base` is no view.
            Source::View(_) => Operand::Outside(0),
        };
        let operands = node.inputs.iter().map(&mut operand).collect();
        let state = node.op.state_operand().map(|at| graph.base(node.inputs[at]));
        let after = state.and_then(|state| writers.get(&state).copied());
        if let Some(state) = state.filter(|_| node.op.writes_state()) {
            writers.insert(state, i);
        }
        shown.push(ChartNode {
            op: node.op.name(),
            detail: detail(&node.op),
            operands,
            results: node.outputs.iter().map(|id| tensor(graph, *id)).collect(),
            after,
            output: output(graph, node, boundaries),
        });
    }
    let outside = outside.into_iter().map(|(_, tensor)| tensor).collect();
    Group { layers: layer.into_iter().collect(), title: String::new(), outside, nodes: shown }
}

fn port_operand(port: &Port, tensor: &str, layer: Option<usize>) -> Operand {
    // Inputs have the names of scalars for extents; others are as they are stored.
    let extents = match port.kind {
        PortKind::Input => tensor.split_once(' ').map_or(tensor, |(_, extents)| extents).to_owned(),
        _ => port.shape.to_string(),
    };
    Operand::Port {
        name: layer.map_or_else(|| port.name.clone(), |layer| of_any_layer(&port.name, layer)),
        kind: port.kind,
        types: vec![(port.dtype, 1)],
        extents,
    }
}

/// The name with `N` in place of the layer's number.
fn of_any_layer(name: &str, layer: usize) -> String {
    let number = layer.to_string();
    let parts = name.split('.').map(|part| if part == number { "N" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

fn output(graph: &Graph, node: &Node, boundaries: &[&str]) -> Option<String> {
    let shown = |p: &&Port| p.kind == PortKind::Output && !boundaries.contains(&p.name.as_str());
    let port = graph.ports.iter().filter(shown).find(|p| node.outputs.contains(&graph.base(p.value)))?;
    Some(port.name.clone())
}

/// Type and extents; the first extent is a scalar's name where a step says how many are real.
fn tensor(graph: &Graph, id: ValueId) -> String {
    let value = graph.value(id);
    let mut extents: Vec<String> = value.layout.shape.dims().iter().map(usize::to_string).collect();
    if let (Some(bound), Some(first)) = (value.bound, extents.first_mut()) {
        first.clone_from(&graph.scalars[bound.0 as usize]);
    }
    format!("{} [{}]", value.dtype, extents.join(", "))
}

/// The parameters of an op that is not told whole by its name.
fn detail(op: &Op) -> String {
    match op {
        Op::Scale { factor } => format!("by {factor}"),
        Op::RmsNorm { eps } | Op::AddRmsNorm { eps } => format!("eps {eps}"),
        Op::Rope { magnitude } if *magnitude != 1.0 => format!("magnitude {magnitude}"),
        Op::Attention { scale, window, softcap } => {
            let window = window.map(|w| format!(", window {w}")).unwrap_or_default();
            let softcap = softcap.map(|c| format!(", softcap {c}")).unwrap_or_default();
            format!("scale {scale}{window}{softcap}")
        }
        Op::Route { k, renormalise } => {
            format!("the best {k}{}", if *renormalise { ", renormalised" } else { "" })
        }
        _ => String::new(),
    }
}

/// Inputs, outputs and states.
fn ports(graph: &Graph, boundaries: &[&str]) -> Vec<ChartPort> {
    let mut shown: Vec<ChartPort> = vec![];
    for kind in [PortKind::Input, PortKind::Output, PortKind::State] {
        let of_kind = graph.ports.iter().filter(|p| p.kind == kind);
        for port in of_kind.filter(|p| !boundaries.contains(&p.name.as_str())) {
            let (name, tensor) = match kind {
                PortKind::State => {
                    let parts = port.name.split('.');
                    let parts = parts.map(|part| if part.parse::<usize>().is_ok() { "N" } else { part });
                    (parts.collect::<Vec<_>>().join("."), format!("{} {}", port.dtype, port.shape))
                }
                _ => (port.name.clone(), tensor(graph, port.value)),
            };
            let same = shown.iter_mut().find(|p| p.kind == kind && p.name == name && p.tensor == tensor);
            match same {
                Some(known) => known.count += 1,
                None => shown.push(ChartPort { name, kind, tensor, count: 1 }),
            }
        }
    }
    shown
}

/// Ascending numbers as ranges: `0-3, 5, 7-9`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = vec![];
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => runs.push((*n, *n)),
        }
    }
    let run = |(first, last): (usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(", ")
}

/// The name without what says the layer: `attn_q.weight` of `blk.N.attn_q.weight`.
fn short(name: &str) -> &str {
    name.split_once(".N.").map_or(name, |(_, rest)| rest)
}

/// Types of a port, `Q4_K` or `Q4_K x 20, Q6_K x 10`.
fn types(of: &[(DType, usize)]) -> String {
    match of {
        [(only, _)] => only.to_string(),
        // In a fixed order, whatever layer came first.
        several => {
            let named: BTreeMap<String, usize> = several.iter().map(|(d, n)| (d.to_string(), *n)).collect();
            named.iter().map(|(d, n)| format!("{d} x {n}")).collect::<Vec<_>>().join(", ")
        }
    }
}

/// What a result is called within its group's text: `x`, and `y` and `z` for further values from outside.
fn outside_name(index: usize) -> String {
    match ["x", "y", "z"].get(index) {
        Some(name) => (*name).to_owned(),
        None => format!("x{index}"),
    }
}
