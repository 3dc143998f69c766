//! Where operands are: everything of a step lies in one arena, so a place is its first word.

/// Rows of 32-bit elements in the arena.
pub(crate) type RowsArg = graph::operand::RowsArg<usize>;
/// Resolves values of one graph.
pub(crate) type Resolver<'a> = graph::operand::Resolver<'a, usize>;

/// The words that kernels take first: rows, bound, per.
pub(crate) fn counts(rows: &RowsArg) -> [u32; 3] {
    let (bound, per) = rows.bound.map_or((u32::MAX, 1), |(b, per)| (b as u32, per as u32));
    [rows.rows as u32, bound, per]
}
