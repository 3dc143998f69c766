//! A chart in the language of Graphviz.

use std::fmt::Write as _;

use super::{Chart, ChartNode, Operand, PortKind, short, types};

impl Chart {
    /// The chart in DOT: a cluster for each group, an edge with type and extents for each value.
    pub fn dot(&self) -> String {
        let mut out = String::from(
            "digraph model {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\", fontsize=10];\n  edge \
             [fontname=\"sans-serif\", fontsize=9];\n",
        );
        for (g, group) in self.groups.iter().enumerate() {
            let _ = writeln!(out, "  subgraph cluster_{g} {{\n    label={};", quoted(&group.title));
            for (i, node) in group.nodes.iter().enumerate() {
                let _ = writeln!(out, "    n{g}_{i} [label={}];", quoted(&label(node)));
            }
            out.push_str("  }\n");
            for (i, node) in group.nodes.iter().enumerate() {
                for operand in &node.operands {
                    match operand {
                        Operand::Node { node: from, tensor, .. } => {
                            let _ = writeln!(out, "  n{g}_{from} -> n{g}_{i} [label={}];", quoted(tensor));
                        }
                        // What the group before computes last.
                        Operand::Outside(at) if g > 0 => {
                            let from = self.groups[g - 1].nodes.len() - 1;
                            let tensor = quoted(&group.outside[*at]);
                            let _ = writeln!(out, "  n{}_{from} -> n{g}_{i} [label={tensor}];", g - 1);
                        }
                        Operand::Outside(_) | Operand::Port { .. } => {}
                    }
                }
                if let Some(from) = node.after {
                    let _ = writeln!(out, "  n{g}_{from} -> n{g}_{i} [style=dashed];");
                }
            }
        }
        out.push_str("}\n");
        out
    }
}

/// The lines in a node's box: the op, its weights and states, its inputs.
pub(super) fn lines(node: &ChartNode) -> Vec<String> {
    let mut lines = vec![node.op.to_owned()];
    if !node.detail.is_empty() {
        lines.push(node.detail.clone());
    }
    let mut inputs = vec![];
    for operand in &node.operands {
        match operand {
            Operand::Port { name, kind: PortKind::Input, .. } => inputs.push(name.as_str()),
            Operand::Port { name, types: of, extents, .. } => {
                lines.push(format!("{} {} {extents}", short(name), types(of)));
            }
            Operand::Node { .. } | Operand::Outside(_) => {}
        }
    }
    if !inputs.is_empty() {
        lines.push(inputs.join(", "));
    }
    lines
}

fn label(node: &ChartNode) -> String {
    let mut all = lines(node);
    all.extend(node.output.as_ref().map(|name| format!("= {name}")));
    all.join("\n")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
