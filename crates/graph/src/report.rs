//! What a compiled plan says about itself.

use std::fmt;

use tensor::{DType, Shape};

use crate::ByteSize;
use crate::graph::{Graph, PortKind};

/// A port as the caller of a plan sees it.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Name.
    pub name: String,
    /// What it is for.
    pub kind: PortKind,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

/// Which kernel computes a node, and why that one.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The op.
    pub op: &'static str,
    /// Operand types and shapes.
    pub operands: String,
    /// The kernel.
    pub kernel: String,
    /// Why it was chosen.
    pub reason: String,
    /// The source line that recorded the op.
    pub site: String,
}

/// Bytes a plan needs beside its weights and states.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Intermediates after aliasing.
    pub arena: u64,
    /// What they would take without aliasing.
    pub unaliased: u64,
    /// Inputs and outputs.
    pub io: u64,
    /// Kernel scratch.
    pub scratch: u64,
    /// Bound weights, at their storage type's size.
    pub weights: u64,
    /// Bound states.
    pub states: u64,
}

/// All a plan reports.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// Label given at compile time.
    pub label: String,
    /// Digest of what is computed and how.
    pub identity: crate::Identity,
    /// Ports in declaration order.
    pub ports: Vec<PortInfo>,
    /// Scalars in declaration order.
    pub scalars: Vec<String>,
    /// Kernels in execution order.
    pub selections: Vec<Selection>,
    /// Memory.
    pub memory: MemoryReport,
}

impl PlanReport {
    /// Ports of a graph.
    pub fn ports(graph: &Graph) -> Vec<PortInfo> {
        let info =
            |p: &crate::Port| PortInfo { name: p.name.clone(), kind: p.kind, dtype: p.dtype, shape: p.shape };
        graph.ports.iter().map(info).collect()
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {} ({})", self.label, self.identity)?;
        for kind in [PortKind::Input, PortKind::Output, PortKind::State] {
            for p in self.ports.iter().filter(|p| p.kind == kind) {
                writeln!(f, "  {:<7}{:<24}{:<6}{}", kind.to_string(), p.name, p.dtype.to_string(), p.shape)?;
            }
        }
        let weights = self.ports.iter().filter(|p| p.kind == PortKind::Weight).count();
        writeln!(f, "  {weights} weights, scalars: {}", self.scalars.join(", "))?;
        // Layers repeat: the same selection is printed once with its count.
        let mut rows: Vec<(&Selection, usize)> = vec![];
        for s in &self.selections {
            match rows.iter_mut().find(|(r, _)| {
                (r.op, &r.operands, &r.kernel, &r.reason) == (s.op, &s.operands, &s.kernel, &s.reason)
            }) {
                Some(row) => row.1 += 1,
                None => rows.push((s, 1)),
            }
        }
        for (s, n) in rows {
            writeln!(f, "  {n:>4} x {:<14}{:<40} {} ({})", s.op, s.operands, s.kernel, s.reason)?;
        }
        let m = &self.memory;
        let [arena, unaliased, io, scratch, weights, states] =
            [m.arena, m.unaliased, m.io, m.scratch, m.weights, m.states].map(ByteSize);
        writeln!(
            f,
            "  memory: arena {arena} (unaliased {unaliased}), inputs and outputs {io}, scratch {scratch}, weights {weights}, \
             states {states}"
        )
    }
}
