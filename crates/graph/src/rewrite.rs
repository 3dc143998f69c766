//! Rewrites of recorded graphs: fusions, each of which turns a composed form into one op of the vocabulary whose reference is
//! that composed form, and [`ahead`].

pub mod ahead;

use tensor::Op;
use tensor::ops::Binary;

use crate::graph::{Graph, Node, NodeId, PortKind, Source, ValueId};

/// All rewrites, in the order that lets one prepare the next. What a graph computes does not change.
pub fn standard(graph: &mut Graph) {
    gated_activation(graph);
    sibling_matmuls(graph);
    add_norm(graph);
    drop_dead(graph);
}

/// `mul(act(gate), up)` becomes [`Op::GatedActivate`].
pub fn gated_activation(graph: &mut Graph) {
    let uses = graph.uses();
    for at in 0..graph.nodes.len() {
        let Node { op: Op::Binary(Binary::Mul), inputs, .. } = &graph.nodes[at] else { continue };
        let (gate, up) = (inputs[0], inputs[1]);
        let Source::Node(producer, _) = graph.value(gate).source else { continue };
        let Op::Activate(activation) = graph.nodes[producer.0 as usize].op else { continue };
        if uses[gate.0 as usize] != 1 {
            continue;
        }
        graph.nodes[at].inputs = vec![graph.nodes[producer.0 as usize].inputs[0], up];
        graph.nodes[at].op = Op::GatedActivate(activation);
    }
    drop_dead(graph);
}

/// Products of one input with several weights, each with an optional bias row, become [`Op::MatMuls`], so that the
/// input is quantised once and a device may run one kernel over all the rows.
pub fn sibling_matmuls(graph: &mut Graph) {
    let uses = graph.uses();
    let mut taken = vec![false; graph.nodes.len()];
    for at in 0..graph.nodes.len() {
        let Node { op: Op::MatMul, inputs, .. } = &graph.nodes[at] else { continue };
        let x = inputs[0];
        if taken[at] || !is_weight(graph, inputs[1]) || graph.value(x).layout.shape.rank() != 2 {
            continue;
        }
        let mut fused = Node { op: Op::MatMul, inputs: vec![x], outputs: vec![], site: graph.nodes[at].site };
        let (mut biased, mut biases, mut replaced) = (vec![], vec![], vec![]);
        for (other, node) in graph.nodes.iter().enumerate().skip(at) {
            if node.op != Op::MatMul || node.inputs[0] != x || !is_weight(graph, node.inputs[1]) {
                continue;
            }
            taken[other] = true;
            replaced.push(other);
            fused.inputs.push(node.inputs[1]);
            // A bias row added right to the product moves into the fused op.
            let product = node.outputs[0];
            let bias = (uses[product.0 as usize] == 1)
                .then(|| {
                    graph.nodes.iter().enumerate().skip(other).find_map(|(i, n)| {
                        let add = n.op == Op::Binary(Binary::Add) && n.inputs[0] == product;
                        let row = graph.base(*n.inputs.get(1)?);
                        (add && is_weight(graph, row) && graph.value(row).layout.shape.rank() == 1)
                            .then_some((i, row))
                    })
                })
                .flatten();
            biased.push(bias.is_some());
            match bias {
                Some((add, row)) => {
                    biases.push(row);
                    fused.outputs.push(graph.nodes[add].outputs[0]);
                    replaced.push(add);
                }
                None => fused.outputs.push(product),
            }
        }
        if fused.inputs.len() == 2 && biases.is_empty() {
            continue;
        }
        fused.inputs.extend(biases);
        fused.op = Op::MatMuls { biased };
        for other in replaced {
            graph.nodes[other].outputs.clear();
        }
        graph.nodes[at] = fused;
    }
    drop_dead(graph);
}

/// An add of two computed tensors, rows of a step, whose sum goes into an RMS norm becomes [`Op::AddRmsNorm`], which
/// gives both.
pub fn add_norm(graph: &mut Graph) {
    for at in 0..graph.nodes.len() {
        let Node { op: Op::RmsNorm { eps }, inputs, outputs, site } = &graph.nodes[at] else { continue };
        let (eps, x, w, normed, site) = (*eps, inputs[0], inputs[1], outputs[0], *site);
        let Source::Node(producer, _) = graph.value(x).source else { continue };
        let add = &graph.nodes[producer.0 as usize];
        let fits = add.op == Op::Binary(Binary::Add)
            && add.outputs == [x]
            && add.inputs.iter().all(|id| !is_weight(graph, *id))
            && is_weight(graph, w)
            && graph.value(x).layout.shape.rank() == 2;
        if !fits {
            continue;
        }
        let add = &mut graph.nodes[producer.0 as usize];
        add.op = Op::AddRmsNorm { eps };
        add.inputs.push(w);
        add.outputs.push(normed);
        add.site = site;
        graph.nodes[at].outputs.clear();
        refresh(graph);
    }
    drop_dead(graph);
}

fn is_weight(graph: &Graph, id: ValueId) -> bool {
    graph.port_of(id).is_some_and(|p| graph.port(p).kind == PortKind::Weight)
}

/// Removes nodes whose results nobody uses and that write no state.
pub fn drop_dead(graph: &mut Graph) {
    loop {
        let uses = graph.uses();
        let before = graph.nodes.len();
        graph.nodes.retain(|n| n.op.writes_state() || n.outputs.iter().any(|o| uses[o.0 as usize] > 0));
        if graph.nodes.len() == before {
            break;
        }
    }
    refresh(graph);
}

/// Restores each computed value's note of its producer.
fn refresh(graph: &mut Graph) {
    for (at, node) in graph.nodes.iter().enumerate() {
        for (i, id) in node.outputs.iter().enumerate() {
            graph.values[id.0 as usize].source = Source::Node(NodeId(at as u32), i as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use tensor::DType;
    use tensor::ops::Activation;

    fn names(graph: &Graph) -> Vec<&'static str> {
        graph.nodes.iter().map(|n| n.op.name()).collect()
    }

    #[test]
    fn fuses_a_transformer_block_s_pieces() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[4, 8], None);
        let w = |n: &str, r| b.weight(n, DType::F32, &[r, 8]);
        let row = |n: &str, r| b.weight(n, DType::F32, &[r]);
        let h = b.rms_norm(x, row("n1", 8), 1e-5);
        let q = b.add_row(b.matmul(h, w("q", 8)), row("qb", 8));
        let k = b.matmul(h, w("k", 8));
        let v = b.add_row(b.matmul(h, w("v", 8)), row("vb", 8));
        let y = b.add(x, b.mul(q, b.mul(k, v)));
        let n = b.rms_norm(y, row("n2", 8), 1e-5);
        let gate = b.matmul(n, w("gate", 16));
        let up = b.matmul(n, w("up", 16));
        let act = b.mul(b.activate(Activation::Silu, gate), up);
        let down = b.matmul(act, b.weight("down", DType::F32, &[8, 16]));
        b.output("y", b.add(y, down));
        let mut graph = b.finish().unwrap();
        standard(&mut graph);
        assert_eq!(
            names(&graph),
            ["rms_norm", "matmuls", "mul", "mul", "add_rms_norm", "matmuls", "swiglu", "matmul", "add"]
        );
        assert_eq!(graph.nodes[1].op, Op::MatMuls { biased: vec![true, false, true] });
        let port = |id: &ValueId| graph.port(graph.port_of(*id).unwrap()).name.clone();
        let operands: Vec<_> = graph.nodes[1].inputs[1..].iter().map(port).collect();
        assert_eq!(operands, ["q", "k", "v", "qb", "vb"]);
    }

    /// A bias added to a norm's input stays an add: its row is a weight. So do heads, which have an axis more.
    #[test]
    fn only_sums_of_rows_go_into_norms() {
        let b = Builder::new();
        let row = |n: &str| b.weight(n, DType::F32, &[8]);
        let x = b.input("x", DType::F32, &[4, 8], None);
        let heads = b.input("heads", DType::F32, &[4, 2, 8], None);
        b.output("biased", b.rms_norm(b.add_row(x, row("bias")), row("n1"), 1e-5));
        b.output("heads'", b.rms_norm(b.add(heads, heads), row("n2"), 1e-5));
        b.output("gain", b.rms_norm(b.add(x, x), b.input("g", DType::F32, &[8], None), 1e-5));
        b.output("rows", b.rms_norm(b.add(x, b.scale(x, 2.0)), row("n3"), 1e-5));
        let mut graph = b.finish().unwrap();
        standard(&mut graph);
        let want = ["add", "rms_norm", "add", "rms_norm", "add", "rms_norm", "scale", "add_rms_norm"];
        assert_eq!(names(&graph), want);
    }

    #[test]
    fn a_product_read_twice_keeps_its_activation() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[4, 8], None);
        let s = b.activate(Activation::Silu, x);
        b.output("y", b.mul(s, x));
        b.output("s", s);
        let mut graph = b.finish().unwrap();
        standard(&mut graph);
        assert_eq!(names(&graph), ["silu", "mul"]);
    }
}
