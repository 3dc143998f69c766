//! Where operands are, resolved at compile time.

use graph::{Graph, PortKind, Source, ValueId};
use tensor::Shape;

/// Storage of a value, with the first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The plan's intermediates.
    Arena(usize),
    /// The instance's inputs.
    Input(usize),
    /// The instance's outputs.
    Output(usize),
}

/// Rows of 32-bit elements: equally long, equally spaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowsArg {
    pub(super) place: Place,
    /// Rows of the whole bucket.
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) stride: usize,
    /// The scalar that bounds the first axis, and rows per entry of that axis.
    pub(super) bound: Option<(usize, usize)>,
}

/// Resolves values of one graph.
pub(super) struct Resolver<'a> {
    pub(super) graph: &'a Graph,
    /// Storage of every value that is not a view, weight or state.
    pub(super) places: Vec<Option<Place>>,
}

impl Resolver<'_> {
    pub(super) fn shape(&self, id: ValueId) -> Shape {
        self.graph.value(id).layout.shape
    }

    /// The value as rows of `width` elements: its last axis, or all axes after the first.
    pub(super) fn rows(&self, id: ValueId, width: usize) -> Option<RowsArg> {
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
        let place = self.places[self.graph.base(id).0 as usize]?;
        let shift = |at: usize| at + layout.offset;
        let place = match place {
            Place::Arena(at) => Place::Arena(shift(at)),
            Place::Input(at) => Place::Input(shift(at)),
            Place::Output(at) => Place::Output(shift(at)),
        };
        let bound = value.bound.map(|b| (b.0 as usize, rows / dims[0].max(1)));
        Some(RowsArg { place, rows, width, stride, bound })
    }

    /// The weight port's index among the weights, when the value is one, unviewed or a broadcast row of it.
    pub(super) fn weight(&self, id: ValueId) -> Option<usize> {
        self.port_index(id, PortKind::Weight)
    }

    /// The state port's index among the states.
    pub(super) fn state(&self, id: ValueId) -> Option<usize> {
        self.port_index(id, PortKind::State)
    }

    fn port_index(&self, id: ValueId, kind: PortKind) -> Option<usize> {
        let Source::Port(port) = self.graph.value(self.graph.base(id)).source else { return None };
        let same = |p: &&graph::Port| p.kind == kind;
        let before = self.graph.ports[..port.0 as usize].iter().filter(same).count();
        (self.graph.port(port).kind == kind).then_some(before)
    }
}
