//! The recorded graph of a model.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use gristmill::Model;
use gristmill::parts::graph::chart::{Chart, ChartNode, Operand};
use gristmill::parts::models::{LOGITS, StepLimits, hidden};
use gristmill::parts::tensor::ops::KV_BLOCK;
use serde_json::{Value, json};

use super::InspectArgs;
use crate::output::{note, results};
use crate::resolve::engine_options;
use crate::whole::write_bytes;

/// A form of the graph.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum GraphForm {
    /// Lines of text
    Text,
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
}

/// The graph of a step of one sequence in the context that is asked for, or that the model was trained with.
pub(super) fn chart(model: &Model, args: &InspectArgs) -> Result<Chart> {
    let (info, options) = (model.info(), engine_options(&args.step, &args.cache));
    let pages = options.context.unwrap_or(info.context).div_ceil(KV_BLOCK).max(1);
    let limits = StepLimits { rows: 1, seqs: 1, outs: 1, pages, blocks: pages, slots: 1 };
    let mut graph = model.record(&limits, options.kv_type_for(info).dtype(), true)?;
    // The hidden states before each layer and behind the last say where layers begin.
    let bounds: Vec<String> = (0..=info.layers).map(hidden).collect();
    graph.retain_outputs(|name| name == LOGITS || bounds.iter().any(|bound| bound == name));
    let bounds: Vec<&str> = bounds.iter().map(String::as_str).collect();
    Chart::new(&graph, &bounds).map_err(|problem| anyhow!("the graph cannot be shown: {problem}"))
}

/// Prints the graph, or writes it to a file.
pub(super) fn print(chart: &Chart, form: GraphForm, to: Option<&Path>) -> Result<()> {
    let text = match form {
        GraphForm::Text => chart.text(),
        GraphForm::Dot => chart.dot(),
        GraphForm::Svg => chart.svg(),
    };
    match to {
        Some(path) => {
            write_bytes(path, text.as_bytes())?;
            note(format_args!("the graph is in {}", path.display()));
        }
        None => {
            let mut out = results();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
    }
    Ok(())
}

/// The graph for `--json`.
pub(super) fn json(chart: &Chart) -> Value {
    let ports: Vec<Value> = chart
        .ports
        .iter()
        .map(|p| json!({ "name": p.name, "kind": p.kind.to_string(), "tensor": p.tensor, "count": p.count }))
        .collect();
    let groups: Vec<Value> = chart
        .groups
        .iter()
        .map(|g| {
            let nodes: Vec<Value> = g.nodes.iter().map(node).collect();
            json!({ "title": g.title, "layers": g.layers, "outside": g.outside, "nodes": nodes })
        })
        .collect();
    json!({ "ports": ports, "groups": groups })
}

fn node(node: &ChartNode) -> Value {
    let operand = |operand: &Operand| match operand {
        Operand::Node { node, result, tensor } => json!({ "node": node, "result": result, "tensor": tensor }),
        Operand::Outside(index) => json!({ "outside": index }),
        Operand::Port { name, kind, types, extents } => {
            let types: Vec<Value> =
                types.iter().map(|(dtype, n)| json!({ "type": dtype.to_string(), "layers": n })).collect();
            json!({ "port": name, "kind": kind.to_string(), "types": types, "shape": extents })
        }
    };
    let inputs: Vec<Value> = node.operands.iter().map(operand).collect();
    json!({
        "op": node.op,
        "detail": node.detail,
        "inputs": inputs,
        "results": node.results,
        "after": node.after,
        "output": node.output,
    })
}
