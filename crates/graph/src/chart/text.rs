//! A chart as lines of text.

use std::fmt::Write as _;

use super::{Chart, ChartNode, Group, Operand, outside_name, types};

impl Chart {
    /// The chart as text: the ports, then each group with a line per node.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let wide = self.ports.iter().map(|p| p.name.len()).max().unwrap_or(0);
        for port in &self.ports {
            let count = if port.count > 1 { format!("  x {}", port.count) } else { String::new() };
            let _ = writeln!(out, "{:<7}{:<wide$}  {}{count}", port.kind.to_string(), port.name, port.tensor);
        }
        for group in &self.groups {
            let _ = writeln!(out, "\n{}", group.title);
            for (i, outside) in group.outside.iter().enumerate() {
                let _ = writeln!(out, "  {:<4}{outside}", outside_name(i));
            }
            group.nodes.iter().enumerate().for_each(|(i, node)| out.push_str(&line(group, i, node)));
        }
        out
    }
}

/// `  %3  rope            %1, pos, rope_freqs -> F32 [rows, 4, 16]`.
fn line(group: &Group, index: usize, node: &ChartNode) -> String {
    let operand = |operand: &Operand| match operand {
        Operand::Node { node, result, .. } => match group.nodes[*node].results.len() {
            0 | 1 => format!("%{node}"),
            _ => format!("%{node}.{result}"),
        },
        Operand::Outside(i) => outside_name(*i),
        Operand::Port { name, kind: crate::PortKind::Weight, types: of, extents } => {
            format!("{name} ({} {extents})", types(of))
        }
        Operand::Port { name, .. } => name.clone(),
    };
    let operands: Vec<String> = node.operands.iter().map(operand).collect();
    let detail = if node.detail.is_empty() { String::new() } else { format!(", {}", node.detail) };
    let results =
        if node.results.is_empty() { String::new() } else { format!(" -> {}", node.results.join("; ")) };
    let output = node.output.as_ref().map(|name| format!(" = {name}")).unwrap_or_default();
    format!("  {:<4}{:<15} {}{detail}{results}{output}\n", format!("%{index}"), node.op, operands.join(", "))
}
