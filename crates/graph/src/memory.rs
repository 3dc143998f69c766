//! Placing intermediates in one arena by lifetime.

use std::ops::Range;

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
///
/// `fused` are groups of nodes that a backend runs as one kernel, each at the place of its last node: what any of them
/// reads lives until then, what they give lives from then on, and what only they read has no place.
///
/// `runs` are nodes through which threads of a backend go without waiting for each other: what one of them reads lives to the
/// end of the run, so that nobody writes over what another still reads.
pub fn plan(graph: &Graph, align: usize, fused: &[Vec<usize>], runs: &[Range<usize>]) -> ArenaPlan {
    let mut runs_at: Vec<usize> = (0..graph.nodes.len()).collect();
    let mut read_until = runs_at.clone();
    for run in runs {
        read_until[run.clone()].fill(run.end.saturating_sub(1));
    }
    let mut read_inside = vec![0; graph.values.len()];
    for group in fused {
        let last = group.iter().copied().max().unwrap_or(0);
        let members = || group.iter().map(|node| &graph.nodes[*node]);
        for id in members().flat_map(|node| &node.inputs).map(|id| graph.base(*id)) {
            let is_own = members().any(|node| node.outputs.contains(&id));
            read_inside[id.0 as usize] += u32::from(is_own);
        }
        group.iter().for_each(|node| runs_at[*node] = last);
    }
    let uses = graph.uses();
    let mut intervals: Vec<Interval> = vec![];
    let mut slot_of = vec![usize::MAX; graph.values.len()];
    for ((node, at), until) in graph.nodes.iter().zip(runs_at).zip(read_until) {
        for id in &node.inputs {
            if let Some(i) = intervals.get_mut(slot_of[graph.base(*id).0 as usize]) {
                i.last = i.last.max(at).max(until);
            }
        }
        for id in &node.outputs {
            let index = id.0 as usize;
            if read_inside[index] > 0 && read_inside[index] == uses[index] {
                continue;
            }
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
        let plan = plan(&graph, 64, &[], &[]);
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

    /// What a fused kernel reads outlives all it writes, and what passes between its nodes takes no memory.
    #[test]
    fn fused_nodes_run_as_one() {
        let b = Builder::new();
        let x = b.scale(b.input("x", DType::F32, &[16, 16], None), 2.0);
        let y = b.scale(b.input("y", DType::F32, &[16, 16], None), 3.0);
        let a = b.activate(Activation::Silu, x);
        let c = b.activate(Activation::Silu, y);
        b.output("z", b.scale(b.mul(a, c), 0.5));
        let graph = b.finish().unwrap();
        let of = |node: usize| graph.nodes[node].outputs[0].0 as usize;
        let apart = plan(&graph, 64, &[], &[]);
        assert!(apart.offsets[of(3)] == apart.offsets[of(0)] && apart.bytes == 3 * 1024);
        // Both activations and the product.
        let one = plan(&graph, 64, &[vec![2, 3, 4]], &[]);
        assert_eq!([of(2), of(3)].map(|value| one.offsets[value]), [None, None]);
        let [x, y, product] = [of(0), of(1), of(4)].map(|value| one.offsets[value].unwrap());
        assert!(x != y && x != product && y != product);
        // The activations alone: each may not take the place of what the other still reads.
        let pair = plan(&graph, 64, &[vec![2, 3]], &[]);
        let places = [0, 1, 2, 3].map(|node| pair.offsets[of(node)].unwrap());
        assert!((0..4).all(|i| (0..i).all(|j| places[i] != places[j])), "{places:?}");
    }

    /// Within a run nothing takes the place of what was read; behind it everything may.
    #[test]
    fn what_a_run_reads_outlives_it() {
        let b = Builder::new();
        let mut y = b.input("x", DType::F32, &[16, 16], None);
        for _ in 0..7 {
            y = b.activate(Activation::Silu, y);
        }
        b.output("y", y);
        let graph = b.finish().unwrap();
        assert_eq!(plan(&graph, 64, &[], &[]).bytes, 2 * 1024);
        let one = plan(&graph, 64, &[], std::slice::from_ref(&(2..5)));
        let places = [1, 2, 3, 4].map(|node| one.offsets[graph.nodes[node].outputs[0].0 as usize].unwrap());
        assert!((0..4).all(|i| (0..i).all(|j| places[i] != places[j])), "{places:?}");
        assert_eq!(one.bytes, 4 * 1024);
    }
}
