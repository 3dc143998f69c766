//! The merge loop shared by byte-level BPE and SentencePiece BPE.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most bytes merged at once; offsets are stored in 32 bits.
pub(crate) const MAX_BYTES: usize = u32::MAX as usize / 2;

/// End of the symbol chain.
const NONE: u32 = u32::MAX;

/// One piece of the input: where it lies and, once known, the token it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) start: u32,
    /// Bytes; zero once the symbol was merged into its left neighbour.
    pub(crate) len: u32,
    pub(crate) id: Option<u32>,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// The bytes of `text` this symbol covers.
    pub(crate) fn slice<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start as usize..(self.start + self.len) as usize]
    }
}

/// A candidate merge. Ordered by rank, then by position: the leftmost of equal merges is done first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Bytes of both sides; a candidate is stale when this no longer holds.
    len: u32,
    id: u32,
}

/// Reusable storage of the merge loop.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the previous input.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends the next `len` bytes of the input as one symbol.
    pub(crate) fn push(&mut self, len: usize, id: Option<u32>) {
        let index = self.symbols.len() as u32;
        let (start, prev) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (last.start + last.len, index - 1)
            }
            None => (0, NONE),
        };
        self.symbols.push(Symbol { start, len: len as u32, id, prev, next: NONE });
    }

    /// Merges until `join(left, right)`, which gives the rank (lower is done first) and the resulting token of a pair,
    /// knows no more pair. O(n log n) in the number of symbols.
    pub(crate) fn run(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let candidate = |symbols: &[Symbol], left: u32, right: u32| {
            let (l, r) = (&symbols[left as usize], &symbols[right as usize]);
            join(l, r).map(|(rank, id)| Reverse(Candidate { rank, left, right, len: l.len + r.len, id }))
        };
        let mut initial = std::mem::take(&mut self.queue).into_vec();
        for right in 1..self.symbols.len() as u32 {
            initial.extend(candidate(&self.symbols, right - 1, right));
        }
        self.queue = BinaryHeap::from(initial);
        while let Some(Reverse(merge)) = self.queue.pop() {
            let (left, right) = (self.symbols[merge.left as usize], self.symbols[merge.right as usize]);
            if left.len == 0
                || right.len == 0
                || left.next != merge.right
                || left.len + right.len != merge.len
            {
                continue;
            }
            self.symbols[merge.left as usize] =
                Symbol { len: merge.len, id: Some(merge.id), next: right.next, ..left };
            self.symbols[merge.right as usize].len = 0;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = merge.left;
                self.queue.extend(candidate(&self.symbols, merge.left, right.next));
            }
            if left.prev != NONE {
                self.queue.extend(candidate(&self.symbols, left.prev, merge.left));
            }
        }
    }

    /// The symbols that are left, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}
