//! Placing intermediates in one arena by lifetime.

use crate::graph::{Graph, PortKind, Source, ValueId};

/// Where every intermediate lies.
#[derive(Clone, Debug, Default)]
pub struct ArenaPlan {
    /// Byte offset of each value that a node computes, by value index; `None` for ports, views and dead values.
    pub offsets: Vec<Option<usize>>,
    /// Size of the arena in bytes.
    pub bytes: usize,
    /// The sum of all sizes, what no aliasing would need.
    pub unaliased: usize,
}

struct Interval {
    value: ValueId,
    first: usize,
    last: usize,
    bytes: usize,
}

/// Lays out the computed values so that two that are alive at once never overlap. The largest are placed first, each
/// in the lowest gap that fits (greedy by size: Pisarchyk and Lee, 2020). `align` is a power of two. Outputs get no
/// place: they have storage of their own, which outlives the step.
pub fn plan(graph: &Graph, align: usize) -> ArenaPlan {
    let mut intervals: Vec<Interval> = vec![];
    let mut slot_of = vec![usize::MAX; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for id in &node.inputs {
            if let Some(i) = intervals.get_mut(slot_of[graph.base(*id).0 as usize]) {
                i.last = at;
            }
        }
        for id in &node.outputs {
            let v = graph.value(*id);
            let bytes =
                (v.layout.shape.elements() * v.dtype.block_bytes()).next_multiple_of(align).max(align);
            slot_of[id.0 as usize] = intervals.len();
            intervals.push(Interval { value: *id, first: at, last: at, bytes });
        }
    }
    for port in graph.ports.iter().filter(|p| p.kind == PortKind::Output) {
        let base = graph.base(port.value);
        debug_assert!(matches!(graph.value(base).source, Source::Node(..)));
        intervals.retain(|i| i.value != base);
    }
    intervals.sort_by_key(|i| (std::cmp::Reverse(i.bytes), i.first, i.value));

    let mut out = ArenaPlan { offsets: vec![None; graph.values.len()], ..ArenaPlan::default() };
    let mut placed: Vec<(usize, Interval)> = vec![]; // sorted by offset
    for new in intervals {
        let mut offset = 0;
        for (at, old) in &placed {
            let overlaps = old.first <= new.last && new.first <= old.last;
            if overlaps {
                if *at >= offset + new.bytes {
                    break;
                }
                offset = offset.max(at + old.bytes);
            }
        }
        out.offsets[new.value.0 as usize] = Some(offset);
        out.bytes = out.bytes.max(offset + new.bytes);
        out.unaliased += new.bytes;
        let index = placed.partition_point(|(at, _)| *at <= offset);
        placed.insert(index, (offset, new));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use tensor::DType;
    use tensor::ops::Activation;

    /// Two values overlap in memory only when their lifetimes do not.
    #[test]
    fn chain_alternates_between_two_buffers_and_a_residual_stays() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[16, 16], None);
        let residual = b.scale(x, 2.0);
        let mut y = residual;
        for _ in 0..6 {
            y = b.activate(Activation::Silu, y);
        }
        let sum = b.add(y, residual);
        b.output("sum", sum);
        let graph = b.finish().unwrap();
        let plan = plan(&graph, 64);
        assert_eq!(plan.bytes, 3 * 1024);
        assert_eq!(plan.unaliased, 7 * 1024);
        for (i, node) in graph.nodes.iter().enumerate().skip(1) {
            for input in node.inputs.iter().filter(|id| plan.offsets[id.0 as usize].is_some()) {
                assert_ne!(
                    plan.offsets[input.0 as usize], plan.offsets[node.outputs[0].0 as usize],
                    "node {i}"
                );
            }
        }
    }
}
