//! Where operands are, resolved at compile time.

use graph::{Graph, PortKind, Source, ValueId};
use tensor::Shape;

/// Rows of 32-bit elements in the arena: equally long, equally spaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsArg {
    /// First word.
    pub(crate) at: usize,
    /// Rows of the whole bucket.
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
    /// The scalar that bounds the first axis, and rows per entry of that axis.
    pub(crate) bound: Option<(usize, usize)>,
}

impl RowsArg {
    /// Whether rows follow one another without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        self.rows <= 1 || self.stride == self.width
    }

    /// The words that kernels take first: rows, bound, per.
    pub(crate) fn counts(&self) -> [u32; 3] {
        let (bound, per) = self.bound.map_or((u32::MAX, 1), |(b, per)| (b as u32, per as u32));
        [self.rows as u32, bound, per]
    }
}

/// Resolves values of one graph.
pub(crate) struct Resolver<'a> {
    pub(crate) graph: &'a Graph,
    /// First word of every value that is not a view, weight or state.
    pub(crate) places: Vec<Option<usize>>,
}

impl Resolver<'_> {
    pub(crate) fn shape(&self, id: ValueId) -> Shape {
        self.graph.value(id).layout.shape
    }

    /// The value as rows of `width` elements: its last axis, or all axes after the first.
    pub(crate) fn rows(&self, id: ValueId, width: usize) -> Option<RowsArg> {
        let value = self.graph.value(id);
        let layout = &value.layout;
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
        let (rows, stride) = if dims.len() > 1 && width == inner && dense_inner {
            (dims[0], if dims[0] == 1 { width } else { layout.strides()[0] })
        } else if width == layout.shape.last() {
            (layout.shape.rows(), layout.row_stride()?)
        } else {
            return None;
        };
        let at = self.places[self.graph.base(id).0 as usize]? + layout.offset;
        let bound = value.bound.map(|b| (b.0 as usize, rows / dims[0].max(1)));
        Some(RowsArg { at, rows, width, stride, bound })
    }

    /// The weight port's index among the weights, when the value is one, unviewed or a broadcast row of it.
    pub(crate) fn weight(&self, id: ValueId) -> Option<usize> {
        self.port_index(id, PortKind::Weight)
    }

    /// The state port's index among the states.
    pub(crate) fn state(&self, id: ValueId) -> Option<usize> {
        self.port_index(id, PortKind::State)
    }

    fn port_index(&self, id: ValueId, kind: PortKind) -> Option<usize> {
        let Source::Port(port) = self.graph.value(self.graph.base(id)).source else { return None };
        let same = |p: &&graph::Port| p.kind == kind;
        let before = self.graph.ports[..port.0 as usize].iter().filter(same).count();
        (self.graph.port(port).kind == kind).then_some(before)
    }
}
