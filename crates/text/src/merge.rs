//! The merge loop shared by byte-level BPE and SentencePiece BPE.

use ahash::AHashMap;
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

/// A candidate merge of one rank. Ordered by position: the leftmost of equal merges is done first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    left: u32,
    /// Bytes of both sides. A candidate is stale when this no longer holds: symbols only grow.
    len: u32,
    id: u32,
}

/// Up to so many symbols, one heap is faster than lists by rank. Words are that short; runs, and the whole texts of
/// SentencePiece, are not.
const FEW: usize = 96;

/// Candidates in order of rank, then of position.
///
/// They wait in a list for each rank. A pass over a text adds to the lists from left to right, so that sorting one is
/// nearly free, and the merges of one rank then walk through memory in order; a heap of all candidates costs a dozen cache
/// misses each on a megabyte. Only what arrives at a rank already begun goes through a heap.
#[derive(Debug, Default)]
struct Queue {
    waiting: AHashMap<u32, Vec<Candidate>>,
    /// The ranks of `waiting`.
    ranks: BinaryHeap<Reverse<u32>>,
    /// Those of the rank begun last, the leftmost at the end.
    current: Vec<Candidate>,
    rank: u32,
    /// Candidates of `rank` or below that were added since it was begun.
    late: BinaryHeap<Reverse<(u32, Candidate)>>,
    /// All go through the heap.
    few: bool,
    /// Emptied lists, to be used again.
    spare: Vec<Vec<Candidate>>,
    /// `rank` is valid.
    begun: bool,
}

impl Queue {
    fn clear(&mut self, few: bool) {
        self.late.clear();
        self.current.clear();
        self.ranks.clear();
        self.spare.extend(self.waiting.drain().map(|(_, list)| list));
        (self.few, self.begun) = (few, false);
    }

    fn push(&mut self, rank: u32, candidate: Candidate) {
        if self.few || (self.begun && rank <= self.rank) {
            self.late.push(Reverse((rank, candidate)));
            return;
        }
        let list = self.waiting.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            self.spare.pop().unwrap_or_default()
        });
        list.push(candidate);
    }

    fn pop(&mut self) -> Option<Candidate> {
        loop {
            match (self.late.peek(), self.current.last()) {
                // Late ones have at most the rank of current ones.
                (Some(Reverse((rank, late))), Some(next)) if *rank == self.rank && late > next => {
                    return self.current.pop();
                }
                (Some(_), _) => return self.late.pop().map(|Reverse((_, candidate))| candidate),
                (None, Some(_)) => return self.current.pop(),
                (None, None) => {}
            }
            let Reverse(rank) = self.ranks.pop()?;
            let mut list = self.waiting.remove(&rank).unwrap_or_default();
            // Stable sorting finds the runs that are in order.
            list.sort();
            list.reverse();
            list.clone_into(&mut self.current);
            list.clear();
            self.spare.push(list);
            (self.rank, self.begun) = (rank, true);
        }
    }
}

/// Reusable storage of the merge loop.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: Queue,
}

impl Merger {
    /// Forgets the previous input.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
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
    /// knows no more pair. `join` is asked at most three times a symbol; all else is in proportion too, unless merges make
    /// pairs of a rank that was already passed, which go through a heap.
    pub(crate) fn run(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let Self { symbols, queue } = self;
        queue.clear(symbols.len() <= FEW);
        let offer = |queue: &mut Queue, symbols: &[Symbol], left: u32, right: u32| {
            let (l, r) = (&symbols[left as usize], &symbols[right as usize]);
            if let Some((rank, id)) = join(l, r) {
                queue.push(rank, Candidate { left, len: l.len + r.len, id });
            }
        };
        for right in 1..symbols.len() as u32 {
            offer(queue, symbols, right - 1, right);
        }
        while let Some(merge) = queue.pop() {
            let left = symbols[merge.left as usize];
            if left.len == 0 || left.next == NONE {
                continue;
            }
            let right = symbols[left.next as usize];
            if left.len + right.len != merge.len {
                continue;
            }
            symbols[left.next as usize].len = 0;
            symbols[merge.left as usize] =
                Symbol { len: merge.len, id: Some(merge.id), next: right.next, ..left };
            // From left to right, as the lists want it.
            if left.prev != NONE {
                offer(queue, symbols, left.prev, merge.left);
            }
            if right.next != NONE {
                symbols[right.next as usize].prev = merge.left;
                offer(queue, symbols, merge.left, right.next);
            }
        }
    }

    /// The symbols that are left, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Merged as the definition says: the pair of lowest rank, the leftmost of equal ones, until there is none.
    fn plainly(mut ids: Vec<u32>, join: &dyn Fn(u32, u32) -> Option<(u32, u32)>) -> Vec<u32> {
        loop {
            let pairs = ids.windows(2).enumerate();
            let best = pairs.filter_map(|(at, p)| join(p[0], p[1]).map(|(rank, id)| (rank, at, id))).min();
            let Some((_, at, id)) = best else { return ids };
            ids.splice(at..at + 2, [id]);
        }
    }

    fn merged(ids: &[u32], join: &dyn Fn(u32, u32) -> Option<(u32, u32)>) -> Vec<u32> {
        let mut merger = Merger::default();
        for round in 0..2 {
            merger.clear();
            ids.iter().for_each(|id| merger.push(1, Some(*id)));
            merger.run(|l, r| join(l.id?, r.id?));
            if round == 0 {
                // Nothing of an input is left for the next one.
                merger.clear();
                (0..200).for_each(|i| merger.push(1, Some(i % 3)));
                merger.run(|l, r| join(l.id?, r.id?));
            }
        }
        merger.symbols().filter_map(|s| s.id).collect()
    }

    proptest! {
        /// Any table of merges: ranks that tie, and results whose own pairs come before the pair they were made of.
        #[test]
        fn any_merges_are_done_in_order(
            table in prop::collection::hash_map((0u32..6, 0u32..6), (0u32..5, 0u32..6), 0..20),
            ids in prop::collection::vec(0u32..4, 0..300),
        ) {
            let join = |l: u32, r: u32| table.get(&(l, r)).copied();
            prop_assert_eq!(merged(&ids, &join), plainly(ids, &join));
        }
    }

    /// Joins the halves of runs of a power of two: the token of 2^n symbols has the id n.
    fn doubling(l: u32, r: u32) -> Option<(u32, u32)> {
        (l == r && l < 12).then_some((l, l + 1))
    }

    /// How often pairs are looked up, and how many candidates pass through the heap, in proportion to a run.
    #[test]
    fn work_grows_with_the_length() {
        let work = |length: usize| {
            let asked = Cell::new(0);
            let mut merger = Merger::default();
            (0..length).for_each(|_| merger.push(1, Some(0)));
            merger.run(|l, r| {
                asked.set(asked.get() + 1);
                doubling(l.id?, r.id?)
            });
            assert!(merger.queue.late.capacity() <= length / 100, "{}", merger.queue.late.capacity());
            assert_eq!(merger.symbols().count(), length.div_ceil(4096), "of {length}");
            asked.get()
        };
        let (short, long) = (work(4096 * 25), work(4096 * 250));
        assert!(short < 3 * 4096 * 25, "{short}");
        assert!(long < short * 101 / 10, "{short} and {long}");
    }
}
