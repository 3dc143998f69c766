//! Where operands are.

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

impl graph::operand::Place for Place {
    fn shifted(self, words: usize) -> Place {
        match self {
            Place::Arena(at) => Place::Arena(at + words),
            Place::Input(at) => Place::Input(at + words),
            Place::Output(at) => Place::Output(at + words),
        }
    }
}

/// Rows of 32-bit elements.
pub(super) type RowsArg = graph::operand::RowsArg<Place>;
/// Resolves values of one graph.
pub(super) type Resolver<'a> = graph::operand::Resolver<'a, Place>;
