//! The recorded graph: values, nodes in order, ports and scalars.

use std::fmt;
use std::panic::Location;

use tensor::{DType, Layout, Op, Shape};

use crate::backend::{WeightDesc, WeightUse};

/// Index of a [`Value`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId(pub u32);

/// Index of a [`Node`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

/// Index of a [`Port`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortId(pub u32);

/// Index of a declared scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ScalarId(pub u32);

/// Where a value's elements are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A port's buffer.
    Port(PortId),
    /// A result of a node.
    Node(NodeId, u32),
    /// A view of another value, which is itself no view.
    View(ValueId),
}

/// A logical tensor of the graph.
#[derive(Clone, Debug)]
pub struct Value {
    /// Element type.
    pub dtype: DType,
    /// Extents, offset and strides within the storage of its [`Source`].
    pub layout: Layout,
    /// Where its elements are.
    pub source: Source,
    /// The scalar that says how many entries of the first axis are real in a step; the rest is padding.
    pub bound: Option<ScalarId>,
}

/// One operation of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Operands in the order the op documents.
    pub inputs: Vec<ValueId>,
    /// Results in the order the op documents.
    pub outputs: Vec<ValueId>,
    /// The line that recorded it.
    pub site: &'static Location<'static>,
}

/// What a port is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortKind {
    /// Varies with every submission.
    Input,
    /// Read-only, bound once per instance.
    Weight,
    /// Caller-owned storage that outlives submissions.
    State,
    /// Readable after a submission.
    Output,
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortKind::Input => "input",
            PortKind::Weight => "weight",
            PortKind::State => "state",
            PortKind::Output => "output",
        })
    }
}

/// A named connection of the graph to its caller.
#[derive(Clone, Debug)]
pub struct Port {
    /// Unique name.
    pub name: String,
    /// What it is for.
    pub kind: PortKind,
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// The value it carries.
    pub value: ValueId,
}

/// A complete, checked recording. Nodes are in execution order; state writes happen in that order.
#[derive(Clone, Debug)]
pub struct Graph {
    /// All values.
    pub values: Vec<Value>,
    /// All nodes, in execution order.
    pub nodes: Vec<Node>,
    /// All ports, in declaration order.
    pub ports: Vec<Port>,
    /// Names of the u32 scalars, in declaration order.
    pub scalars: Vec<String>,
}

impl Graph {
    /// The value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The value whose storage `id` uses: itself, or the base of a view.
    pub fn base(&self, id: ValueId) -> ValueId {
        match self.value(id).source {
            Source::View(base) => base,
            _ => id,
        }
    }

    /// The port whose buffer holds `id`, if it is one.
    pub fn port_of(&self, id: ValueId) -> Option<PortId> {
        match self.value(self.base(id)).source {
            Source::Port(port) => Some(port),
            _ => None,
        }
    }

    /// The port.
    pub fn port(&self, id: PortId) -> &Port {
        &self.ports[id.0 as usize]
    }

    /// The port of that name.
    pub fn find_port(&self, name: &str) -> Option<PortId> {
        self.ports.iter().position(|p| p.name == name).map(|i| PortId(i as u32))
    }

    /// Every weight port as a backend is to pack it. A weight that is a matrix to one op and elements to another is a
    /// matrix: ops that want elements refuse it at compile time.
    pub fn weights(&self) -> Vec<WeightDesc> {
        let mut matrix = vec![false; self.values.len()];
        for node in &self.nodes {
            let operands = match &node.op {
                Op::Gather => 0..1,
                Op::MatMul | Op::ExpertMatMul => 1..2,
                Op::MatMuls { biased } => 1..1 + biased.len(),
                _ => continue,
            };
            for id in &node.inputs[operands] {
                matrix[self.base(*id).0 as usize] = true;
            }
        }
        let weights = self.ports.iter().filter(|p| p.kind == PortKind::Weight);
        weights
            .map(|p| WeightDesc {
                name: p.name.clone(),
                dtype: p.dtype,
                shape: p.shape,
                layout: if matrix[p.value.0 as usize] { WeightUse::Matrix } else { WeightUse::Elements },
            })
            .collect()
    }

    /// The scalar that counts the rows of a step: the bound of `pos`, wherever an op takes it. `None` where no op does;
    /// then the first axis of every value is the rows. An op whose rows were gathered has another bound.
    pub fn row_scalar(&self) -> Option<ScalarId> {
        self.nodes.iter().find_map(|node| {
            let pos = node.op.roles().iter().position(|role| *role == "pos")?;
            self.value(node.inputs[pos]).bound
        })
    }

    /// Drops the outputs that `keep` refuses by name. What only they needed goes with the next of the rewrites.
    pub fn retain_outputs(&mut self, keep: impl Fn(&str) -> bool) {
        let kept: Vec<bool> =
            self.ports.iter().map(|p| p.kind != PortKind::Output || keep(&p.name)).collect();
        for value in &mut self.values {
            if let Source::Port(port) = &mut value.source {
                let before = &kept[..port.0 as usize];
                *port = PortId(before.iter().filter(|kept| **kept).count() as u32);
            }
        }
        let mut kept = kept.into_iter();
        self.ports.retain(|_| kept.next().unwrap_or(true));
    }

    /// How often each value's storage is read by nodes or is an output.
    pub fn uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.values.len()];
        for id in self.nodes.iter().flat_map(|n| &n.inputs) {
            uses[self.base(*id).0 as usize] += 1;
        }
        for port in self.ports.iter().filter(|p| p.kind == PortKind::Output) {
            uses[self.base(port.value).0 as usize] += 1;
        }
        uses
    }
}
