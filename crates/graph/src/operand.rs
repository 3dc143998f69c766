//! Where operands are, resolved when a backend compiles a graph.

use tensor::{Layout, Shape};

use crate::graph::{Graph, Port, PortKind, Source, ValueId};

/// Storage of a value: what holds it, and its first 32-bit word there.
pub trait Place: Copy {
    /// The place so many words further on.
    #[must_use]
    fn shifted(self, words: usize) -> Self;
}

/// Where one buffer holds everything.
impl Place for usize {
    fn shifted(self, words: usize) -> usize {
        self + words
    }
}

/// Rows of 32-bit elements: equally long, equally spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsArg<P> {
    /// The first row.
    pub at: P,
    /// Rows of the whole bucket.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Words from one row to the next.
    pub stride: usize,
    /// The scalar that bounds the first axis, and rows per entry of that axis.
    pub bound: Option<(usize, usize)>,
}

impl<P> RowsArg<P> {
    /// Whether rows follow one another without gaps.
    pub fn is_dense(&self) -> bool {
        self.rows <= 1 || self.stride == self.width
    }
}

/// Rows and their stride when a value is seen as rows of `width` elements: its last axis, or all axes after the first.
pub fn rows_of(layout: &Layout, width: usize) -> Option<(usize, usize)> {
    let dims = layout.shape.dims();
    let inner: usize = dims.iter().skip(1).product();
    let dense_inner = {
        let mut step = 1;
        let mut dense = true;
        for axis in (1..dims.len()).rev() {
            dense &= dims[axis] == 1 || layout.strides()[axis] == step;
            step *= dims[axis];
        }
        dense
    };
    if dims.len() > 1 && width == inner && dense_inner {
        Some((dims[0], if dims[0] == 1 { width } else { layout.strides()[0] }))
    } else if width == layout.shape.last() {
        Some((layout.shape.rows(), layout.row_stride()?))
    } else {
        None
    }
}

/// Resolves values of one graph.
#[derive(Debug)]
pub struct Resolver<'a, P> {
    /// The graph.
    pub graph: &'a Graph,
    /// Storage of every value that is not a view, weight or state, by value index.
    pub places: Vec<Option<P>>,
}

impl<P: Place> Resolver<'_, P> {
    /// Extents of a value.
    pub fn shape(&self, id: ValueId) -> Shape {
        self.graph.value(id).layout.shape
    }

    /// The value as rows of `width` elements, see [`rows_of`]; `None` when it is not such rows or has no storage.
    pub fn rows(&self, id: ValueId, width: usize) -> Option<RowsArg<P>> {
        let value = self.graph.value(id);
        let (rows, stride) = rows_of(&value.layout, width)?;
        let at = self.places[self.graph.base(id).0 as usize]?.shifted(value.layout.offset);
        let entries = value.layout.shape.dims().first().copied().unwrap_or(1);
        let bound = value.bound.map(|b| (b.0 as usize, rows / entries.max(1)));
        Some(RowsArg { at, rows, width, stride, bound })
    }

    /// The weight port's index among the weights, when the value is one, unviewed or a broadcast row of it.
    pub fn weight(&self, id: ValueId) -> Option<usize> {
        self.port_index(id, PortKind::Weight)
    }

    /// The state port's index among the states.
    pub fn state(&self, id: ValueId) -> Option<usize> {
        self.port_index(id, PortKind::State)
    }

    fn port_index(&self, id: ValueId, kind: PortKind) -> Option<usize> {
        let Source::Port(port) = self.graph.value(self.graph.base(id)).source else { return None };
        let same = |p: &&Port| p.kind == kind;
        let before = self.graph.ports[..port.0 as usize].iter().filter(same).count();
        (self.graph.port(port).kind == kind).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use tensor::DType;

    #[test]
    fn views_are_rows_where_a_kernel_can_walk_them() {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[3, 24], None);
        let heads = b.reshape(b.slice(x, 1, 8, 16), &[3, 4, 4]);
        b.output("y", b.scale(heads, 2.0));
        let graph = b.finish().unwrap();
        let input = graph.port(graph.find_port("x").unwrap()).value;
        let mut places = vec![None; graph.values.len()];
        places[input.0 as usize] = Some(100);
        let resolver = Resolver { graph: &graph, places };
        let heads = graph.nodes[0].inputs[0];
        let show =
            |width| resolver.rows(heads, width).map(|r| (r.at, r.rows, r.width, r.stride, r.is_dense()));
        assert_eq!(show(16), Some((108, 3, 16, 24, false)));
        // Heads of different rows are not equally spaced; rows of eight are no axis at all.
        assert_eq!((show(4), show(8)), (None, None));
        assert_eq!(resolver.rows(graph.nodes[0].outputs[0], 16).map(|r| r.at), None);
    }
}
