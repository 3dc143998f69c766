//! Which nodes of a graph one kernel can do the work of.
//!
//! A graph stays as it was recorded: a group is a note on it, so that the composed form is what runs where the fused kernels
//! are switched off, and their results can be compared bit by bit.

use graph::operand::rows_of;
use graph::{Graph, Node, Source, ValueId};
use tensor::Op;
use tensor::ops::Activation;

/// Nodes that one kernel does the work of. It runs where the last of them stood.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Fused {
    /// The rotation of queries and of keys, and the cache written.
    RopeKv(RopeKv),
    /// Two products of one input and the gated activation of both.
    Gated(Gated),
}

/// Indices of nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct RopeKv {
    /// The norms of the heads of queries and keys.
    pub(crate) norms: Option<[usize; 2]>,
    /// The rotations of queries and keys.
    pub(crate) ropes: [usize; 2],
    pub(crate) write: usize,
}

/// Indices of nodes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Gated {
    /// Both products in one node, or one node each.
    pub(crate) products: Vec<usize>,
    /// The weights of gate and up.
    pub(crate) weights: [ValueId; 2],
    pub(crate) act: usize,
    pub(crate) activation: Activation,
}

impl Fused {
    /// The nodes of the group.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        match self {
            Fused::RopeKv(RopeKv { norms, ropes, write }) => {
                norms.iter().flatten().chain(ropes).chain([write]).copied().collect()
            }
            Fused::Gated(Gated { products, act, .. }) => products.iter().chain([act]).copied().collect(),
        }
    }
}

/// The groups of a graph; no node is in two.
pub(crate) fn groups(graph: &Graph) -> Vec<Fused> {
    let uses = graph.uses();
    let mut taken = vec![false; graph.nodes.len()];
    let mut out = vec![];
    for (at, node) in graph.nodes.iter().enumerate() {
        let group = match node.op {
            Op::KvWrite => rope_kv(graph, &uses, at).map(Fused::RopeKv),
            Op::GatedActivate(activation) => gated(graph, &uses, at, activation).map(Fused::Gated),
            _ => None,
        };
        let Some(group) = group else { continue };
        let nodes = group.nodes();
        if nodes.iter().all(|n| !taken[*n]) && separable(graph, &nodes) {
            nodes.iter().for_each(|n| taken[*n] = true);
            out.push(group);
        }
    }
    out
}

/// Whether nobody between the nodes wants what they give: they all run at the place of the last.
fn separable(graph: &Graph, nodes: &[usize]) -> bool {
    let (first, last) = nodes.iter().fold((usize::MAX, 0), |(a, b), n| (a.min(*n), b.max(*n)));
    let members = || nodes.iter().map(|n| &graph.nodes[*n]);
    let states = members().filter_map(|n| n.op.state_operand().map(|at| graph.base(n.inputs[at])));
    let given: Vec<ValueId> = members().flat_map(|n| n.outputs.clone()).chain(states).collect();
    (first..last)
        .filter(|n| !nodes.contains(n))
        .all(|n| graph.nodes[n].inputs.iter().all(|id| !given.contains(&graph.base(*id))))
}

/// The node that gives a value, itself and not a view of it.
fn producer(graph: &Graph, id: ValueId) -> Option<(usize, &Node)> {
    match graph.value(id).source {
        Source::Node(node, _) => Some((node.0 as usize, &graph.nodes[node.0 as usize])),
        _ => None,
    }
}

/// Whether all after the first axis is one dense row.
fn is_whole_rows(graph: &Graph, id: ValueId) -> bool {
    let layout = &graph.value(id).layout;
    let width = layout.shape.dims().iter().skip(1).product();
    layout.shape.rank() == 3 && rows_of(layout, width).is_some_and(|(rows, _)| rows == layout.shape.dims()[0])
}

fn rope_kv(graph: &Graph, uses: &[u32], write: usize) -> Option<RopeKv> {
    let node = &graph.nodes[write];
    let (k, cache) = (node.inputs[0], node.inputs[2]);
    // The queries are those of the first that reads what is written.
    let reader = graph.nodes[write..].iter().find(|n| {
        matches!(n.op, Op::Attention { .. }) && n.op.state_operand().is_some_and(|at| n.inputs[at] == cache)
    })?;
    let q = reader.inputs[0];
    let [(q_at, q_rope), (k_at, k_rope)] = [producer(graph, q)?, producer(graph, k)?];
    let is_rope = matches!(k_rope.op, Op::Rope { .. }) && k_rope.op == q_rope.op;
    let same_angles = k_rope.inputs[1..] == q_rope.inputs[1..];
    let [q_value, k_value] = [q, k].map(|id| graph.value(id));
    let same_rows = q_value.bound == k_value.bound
        && q_value.layout.shape.dims()[0] == k_value.layout.shape.dims()[0]
        && q_value.layout.shape.last() == k_value.layout.shape.last();
    let from = [q_rope.inputs[0], k_rope.inputs[0]];
    let walkable = from.iter().chain(&node.inputs[1..2]).all(|id| is_whole_rows(graph, *id));
    if !(is_rope && same_angles && same_rows && walkable && uses[k.0 as usize] == 1) {
        return None;
    }
    let norm = |id: ValueId| {
        let (at, norm) = producer(graph, id)?;
        let fits = matches!(norm.op, Op::RmsNorm { .. })
            && uses[id.0 as usize] == 1
            && graph.port_of(norm.inputs[1]).is_some()
            && is_whole_rows(graph, norm.inputs[0]);
        fits.then_some(at)
    };
    let norms = norm(from[0]).zip(norm(from[1])).map(|(q, k)| [q, k]);
    Some(RopeKv { norms, ropes: [q_at, k_at], write })
}

fn gated(graph: &Graph, uses: &[u32], act: usize, activation: Activation) -> Option<Gated> {
    let [gate, up] = graph.nodes[act].inputs[..] else { return None };
    let [(gate_at, gate_node), (up_at, up_node)] = [producer(graph, gate)?, producer(graph, up)?];
    if gate == up || [gate, up].iter().any(|id| uses[id.0 as usize] != 1) {
        return None;
    }
    let (products, weights) = match (&gate_node.op, &up_node.op) {
        // Biases may lie apart, so that one kernel could not see both.
        (Op::MatMuls { biased }, _) if gate_at == up_at && biased[..] == [false, false] => {
            let first = usize::from(gate_node.outputs[0] != gate);
            (vec![gate_at], [gate_node.inputs[1 + first], gate_node.inputs[2 - first]])
        }
        (Op::ExpertMatMul, Op::ExpertMatMul)
            if (gate_node.inputs[0], gate_node.inputs[2]) == (up_node.inputs[0], up_node.inputs[2]) =>
        {
            (vec![gate_at, up_at], [gate_node.inputs[1], up_node.inputs[1]])
        }
        _ => return None,
    };
    let [a, b] = weights.map(|id| graph.value(id));
    let alike = (a.dtype, a.layout.shape) == (b.dtype, b.layout.shape);
    (alike && weights[0] != weights[1]).then_some(Gated { products, weights, act, activation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{Builder, rewrite};
    use tensor::DType;

    /// What is found in a block of attention and a gated MLP, recorded with a twist.
    fn found(twist: &str) -> Vec<usize> {
        let b = Builder::new();
        let weight = |name: &str, dims: &[usize]| b.weight(name, DType::F32, dims);
        let rows = b.scalar("rows");
        let step = |name: &str, n: usize| b.input(name, DType::U32, &[n], None);
        let x = b.input("x", DType::F32, &[4, 64], Some(rows));
        let pos = b.input("pos", DType::U32, &[4], Some(rows));
        let (until, extents) = (b.input("until", DType::U32, &[4], Some(rows)), step("extents", 1));
        let pages = b.input("pages", DType::U32, &[1, 2], None);
        let heads = |name: &str, n: usize| b.reshape(b.matmul(x, weight(name, &[16 * n, 64])), &[4, n, 16]);
        let (q, k, v) = (heads("q", 4), heads("k", 2), heads("v", 2));
        let norm = |name: &str, x| b.rms_norm(x, weight(name, &[16]), 1e-6);
        let (q, k) = match twist {
            "no norms" => (q, k),
            "one norm" => (norm("qn", q), k),
            _ => (norm("qn", q), norm("kn", k)),
        };
        let angles = weight("freqs", &[8]);
        let rope = |x, magnitude| b.rope(x, pos, angles, magnitude);
        let k = rope(k, 1.0);
        let q = rope(q, if twist == "other angles" { 2.0 } else { 1.0 });
        if twist == "keys wanted" {
            b.output("keys", k);
        }
        let cache = b.state("kv", DType::F32, &[4, 16, 2, 32]);
        let cache = b.kv_write(cache, k, v, pos, extents, pages);
        let q = if twist == "queries changed" { b.scale(q, 0.5) } else { q };
        let op = Op::Attention { scale: 1.0, window: None, softcap: None };
        let o = b.reshape(b.attention(op, q, cache, pos, until, extents, pages), &[4, 64]);
        let product = |name: &str| {
            let y = b.matmul(o, weight(name, &[96, 64]));
            if twist == "biases" { b.add_row(y, weight(&format!("{name}b"), &[96])) } else { y }
        };
        let (gate, up) = (product("gate"), product("up"));
        if twist == "gate wanted" {
            b.output("gate'", gate);
        }
        let act = b.mul(b.activate(Activation::Silu, gate), up);
        let sibling = (twist == "three siblings").then(|| product("third"));
        b.output("y", sibling.map_or(act, |third| b.add(act, third)));
        let mut graph = b.finish().unwrap();
        rewrite::standard(&mut graph);
        groups(&graph).iter().map(|g| g.nodes().len()).collect()
    }

    #[test]
    fn groups_are_found_where_nobody_else_wants_what_passes_inside() {
        for (twist, want) in [
            ("none", &[5, 2][..]),
            ("no norms", &[3, 2]),
            // The norm stays a kernel of its own.
            ("one norm", &[3, 2]),
            ("other angles", &[2]),
            ("keys wanted", &[2]),
            ("queries changed", &[2]),
            ("biases", &[5]),
            ("gate wanted", &[5]),
            ("three siblings", &[5]),
        ] {
            assert_eq!(found(twist), want, "{twist}");
        }
    }
}
