use tensor::DType::{self, F16, F32, U32};

use super::*;
use crate::Builder;

/// Layers of one of two kinds: those of `gated` multiply instead of add.
fn recorded(layers: usize, gated: &[usize], types: &[DType]) -> Graph {
    let b = Builder::new();
    let rows = b.scalar("rows");
    let ids = b.input("ids", U32, &[4], Some(rows));
    let mut x = b.gather(b.weight("embed.weight", F32, &[10, 32]), ids);
    for layer in 0..layers {
        b.output(&format!("at.{layer}"), x);
        let normed = b.rms_norm(x, b.weight(&format!("blk.{layer}.norm.weight"), F32, &[32]), 1e-5);
        let dtype = types[layer % types.len()];
        let y = b.matmul(normed, b.weight(&format!("blk.{layer}.up.weight"), dtype, &[32, 32]));
        x = if gated.contains(&layer) { b.mul(x, y) } else { b.add(x, y) };
    }
    b.output(&format!("at.{layers}"), x);
    b.output("unread", b.scale(x, 3.0));
    b.output("logits", b.matmul(x, b.weight("head.weight", F16, &[10, 32])));
    let mut graph = b.finish().unwrap();
    graph.retain_outputs(|name| name != "unread");
    graph
}

fn chart(layers: usize, gated: &[usize], types: &[DType]) -> Chart {
    let names: Vec<String> = (0..=layers).map(|i| format!("at.{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Chart::new(&recorded(layers, gated, types), &names).unwrap()
}

#[test]
fn layers_that_are_alike_are_shown_once() {
    let chart = chart(6, &[2, 5], &[DType::Q4_0, DType::Q8_0]);
    let titles: Vec<&str> = chart.groups.iter().map(|g| g.title.as_str()).collect();
    assert_eq!(
        titles,
        ["before the layers", "layers 0-1, 3-4 (4 alike)", "layers 2, 5 (2 alike)", "behind the layers"]
    );
    assert_eq!(
        chart.text(),
        "\
input  ids     U32 [rows]
output logits  F32 [rows, 10]

before the layers
  %0  gather          embed.weight (F32 [10, 32]), ids -> F32 [rows, 32]

layers 0-1, 3-4 (4 alike)
  x   F32 [rows, 32]
  %0  rms_norm        x, blk.N.norm.weight (F32 [32]), eps 0.00001 -> F32 [rows, 32]
  %1  matmul          %0, blk.N.up.weight (Q4_0 x 2, Q8_0 x 2 [32, 32]) -> F32 [rows, 32]
  %2  add             x, %1 -> F32 [rows, 32]

layers 2, 5 (2 alike)
  x   F32 [rows, 32]
  %0  rms_norm        x, blk.N.norm.weight (F32 [32]), eps 0.00001 -> F32 [rows, 32]
  %1  matmul          %0, blk.N.up.weight (Q4_0 x 1, Q8_0 x 1 [32, 32]) -> F32 [rows, 32]
  %2  mul             x, %1 -> F32 [rows, 32]

behind the layers
  x   F32 [rows, 32]
  %0  matmul          x, head.weight (F16 [10, 32]) -> F32 [rows, 10] = logits
"
    );
}

#[test]
fn every_node_and_edge_is_in_dot_and_picture() {
    let chart = chart(3, &[], &[F32]);
    let (dot, svg) = (chart.dot(), chart.svg());
    assert_eq!(dot.matches("[label=\"rms_norm").count(), 1);
    assert_eq!(dot.matches(" -> ").count(), 5, "{dot}");
    assert!(dot.contains("n0_0 -> n1_0 [label=\"F32 [rows, 32]\"]"), "{dot}");
    for part in ["rms_norm", "up.weight F32 [32, 32]", "layers 0-2 (3 alike)", "logits: F32 [rows, 10]"] {
        assert!(svg.contains(part), "{part} is missing from\n{svg}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    // Five edges, the residual among them; two arrows between groups.
    assert_eq!(svg.matches("marker-end").count(), 5 + 2, "{svg}");
}

/// Three products of one value, beside one another.
fn siblings() -> Graph {
    let b = Builder::new();
    let x = b.input("x", F32, &[4, 32], Some(b.scalar("rows")));
    let normed = b.rms_norm(x, b.weight("norm.weight", F32, &[32]), 1e-5);
    let product = |name: &str| b.matmul(normed, b.weight(name, F32, &[32, 32]));
    let [q, k, v] = ["q.weight", "k_of_a_longer_name.weight", "v.weight"].map(product);
    b.output("y", b.add(b.add(q, k), v));
    b.finish().unwrap()
}

#[test]
fn boxes_do_not_overlap() {
    let mut beside = 0;
    let groups = [chart(2, &[1], &[F32]), Chart::new(&siblings(), &[]).unwrap()].map(|chart| chart.groups);
    for group in groups.iter().flatten() {
        let layout = svg::boxes(group);
        assert_eq!(layout.len(), group.outside.len() + group.nodes.len());
        for (i, a) in layout.iter().enumerate() {
            for b in &layout[i + 1..] {
                let apart = |a: (f64, f64), b: (f64, f64)| a.1 <= b.0 || b.1 <= a.0;
                assert!(apart(a.0, b.0) || apart(a.1, b.1), "{a:?} and {b:?}");
                beside += usize::from(!apart(a.1, b.1));
            }
        }
    }
    // Three pairs of the three.
    assert_eq!(beside, 3);
}

#[test]
fn a_graph_without_layers_is_one_group_and_wrong_boundaries_are_named() {
    let graph = recorded(2, &[], &[F32]);
    let chart = Chart::new(&graph, &[]).unwrap();
    assert_eq!(chart.groups.len(), 1);
    assert_eq!(chart.groups[0].title, "graph");
    assert!(Chart::new(&graph, &["at.7"]).unwrap_err().contains("`at.7`"));
    assert!(Chart::new(&graph, &["at.1", "at.0"]).unwrap_err().contains("before the one"));
}

#[test]
fn a_reader_of_a_state_comes_after_its_writer() {
    let b = Builder::new();
    let rows = b.scalar("rows");
    let one = |name: &str| b.input(name, U32, &[1], Some(rows));
    let x = b.input("x", F32, &[1, 2, 16], Some(rows));
    let (pos, until, extents) = (one("pos"), one("until"), one("extents"));
    let pages = b.input("pages", U32, &[1, 1], Some(rows));
    let cache = b.kv_write(b.state("kv.0", F32, &[1, 16, 2, 32]), x, x, pos, extents, pages);
    let op = Op::Attention { scale: 0.25, window: Some(8), softcap: None };
    b.output("y", b.attention(op, x, cache, pos, until, extents, pages));
    let chart = Chart::new(&b.finish().unwrap(), &[]).unwrap();
    assert_eq!(chart.groups[0].nodes[1].after, Some(0));
    assert!(chart.dot().contains("n0_0 -> n0_1 [style=dashed]"));
    assert!(chart.svg().contains("edge order"));
    assert!(chart.text().contains("scale 0.25, window 8"), "{}", chart.text());
    assert!(chart.ports.iter().any(|p| p.name == "kv.N" && p.kind == PortKind::State));
}
