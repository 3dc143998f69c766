//! A digest of what a plan computes.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::graph::{Graph, Source};

/// Digest over ops in order, their attributes, operand types, shapes and layouts, ports and scalars, and whatever the
/// backend adds (kernels, precision). Values of weights are not part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity([u8; 16]);

impl Identity {
    /// The identity of a graph compiled in the way `how` describes.
    pub fn of(graph: &Graph, how: &str) -> Identity {
        let mut hash = Sha256::new();
        let mut put = |text: String| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        put(how.to_owned());
        for port in &graph.ports {
            put(format!("{} {} {} {} {}", port.name, port.kind, port.dtype, port.shape, port.value.0));
        }
        for scalar in &graph.scalars {
            put(scalar.clone());
        }
        for node in &graph.nodes {
            put(format!("{:?} {:?}", node.op, node.outputs));
            for id in &node.inputs {
                let v = graph.value(*id);
                let from = match v.source {
                    Source::View(base) => base,
                    _ => *id,
                };
                put(format!("{} {:?} {:?} {:?}", from.0, v.dtype, v.layout, v.bound));
            }
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hash.finalize()[..16]);
        Identity(id)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
