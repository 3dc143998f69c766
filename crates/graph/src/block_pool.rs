//! Which KV block belongs to whom.

use thiserror::Error;

/// A fixed number of equally sized KV blocks, handed out to sequences and counted.
///
/// The pool holds numbers only; the storage belongs to a backend. A block has one holder when [`BlockPool::grow`]
/// hands it out; [`BlockPool::retain`] adds one (a shared prefix), and the block is free again when the last holder
/// lets go. The pool never evicts: what to give up when it is empty is the scheduler's decision. Blocks of one
/// sequence need not be adjacent.
#[derive(Clone, Debug)]
pub struct BlockPool {
    positions_per_block: usize,
    /// Holders of each block; 0 is free.
    holders: Vec<u32>,
    /// Free blocks; the last one is handed out next.
    free: Vec<u32>,
}

/// Why a request to a [`BlockPool`] was refused. A refused request changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BlockPoolError {
    /// Blocks of no positions were asked for.
    #[error("a KV block must hold at least one position")]
    NoPositions,
    /// Too few blocks are free.
    #[error("{needed} more KV blocks are needed and {free} of {total} are free")]
    Exhausted {
        /// Blocks the request needs beyond those it has.
        needed: usize,
        /// Blocks free now.
        free: usize,
        /// Blocks in the pool.
        total: usize,
    },
    /// The block does not exist.
    #[error("KV block {block} does not exist: the pool has {total}")]
    Unknown {
        /// The block named.
        block: u32,
        /// Blocks in the pool.
        total: usize,
    },
    /// The block was let go more often than it was taken.
    #[error("KV block {0} is freed more often than it is held")]
    DoubleFree(u32),
    /// A free block cannot gain a holder.
    #[error("KV block {0} is free and cannot be shared")]
    NotHeld(u32),
    /// The count of holders is at its limit.
    #[error("KV block {0} has too many holders")]
    TooManyHolders(u32),
}

impl BlockPool {
    /// A pool of `blocks` free blocks, each of `positions_per_block` positions.
    ///
    /// # Errors
    /// Blocks of no positions are refused.
    pub fn new(blocks: u32, positions_per_block: usize) -> Result<Self, BlockPoolError> {
        if positions_per_block == 0 {
            return Err(BlockPoolError::NoPositions);
        }
        Ok(BlockPool {
            positions_per_block,
            holders: vec![0; blocks as usize],
            free: (0..blocks).rev().collect(),
        })
    }

    /// Blocks that nobody holds.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks that `positions` positions take.
    pub fn blocks_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.positions_per_block)
    }

    /// Extends `pages`, a sequence's blocks in order of position, until they cover `positions` positions.
    ///
    /// Pages that already cover them are left as they are: growing never shrinks.
    ///
    /// # Errors
    /// [`BlockPoolError::Exhausted`] when too few blocks are free; `pages` is then unchanged.
    pub fn grow(&mut self, pages: &mut Vec<u32>, positions: usize) -> Result<(), BlockPoolError> {
        let needed = self.blocks_for(positions).saturating_sub(pages.len());
        let Some(kept) = self.free.len().checked_sub(needed) else {
            return Err(BlockPoolError::Exhausted {
                needed,
                free: self.free.len(),
                total: self.holders.len(),
            });
        };
        for block in self.free.drain(kept..).rev() {
            self.holders[block as usize] = 1;
            pages.push(block);
        }
        Ok(())
    }

    /// Lets go of every block in `pages` once and empties the list.
    ///
    /// # Errors
    /// A block that does not exist, or that is let go more often than it is held, is refused; then no block is let go
    /// and `pages` is unchanged. (A stale copy of a list whose blocks have since been handed out again cannot be told
    /// from its new holder's list.)
    pub fn free(&mut self, pages: &mut Vec<u32>) -> Result<(), BlockPoolError> {
        let free_before = self.free.len();
        // Last page first, so that a later grow hands the same blocks out in the same order.
        for (done, &block) in pages.iter().rev().enumerate() {
            if let Err(refusal) = self.release(block) {
                self.free.truncate(free_before);
                pages.iter().rev().take(done).for_each(|&block| self.holders[block as usize] += 1);
                return Err(refusal);
            }
        }
        pages.clear();
        Ok(())
    }

    /// Adds a holder to `block`.
    ///
    /// # Errors
    /// A block that does not exist or that nobody holds is refused.
    pub fn retain(&mut self, block: u32) -> Result<(), BlockPoolError> {
        match self.holders.get_mut(block as usize) {
            None => Err(BlockPoolError::Unknown { block, total: self.holders.len() }),
            Some(0) => Err(BlockPoolError::NotHeld(block)),
            Some(holders) => {
                *holders = holders.checked_add(1).ok_or(BlockPoolError::TooManyHolders(block))?;
                Ok(())
            }
        }
    }

    /// Takes a holder from `block`; true when it was the last and the block is free.
    ///
    /// # Errors
    /// A block that does not exist or that nobody holds is refused.
    pub fn release(&mut self, block: u32) -> Result<bool, BlockPoolError> {
        match self.holders.get_mut(block as usize) {
            None => Err(BlockPoolError::Unknown { block, total: self.holders.len() }),
            Some(0) => Err(BlockPoolError::DoubleFree(block)),
            Some(holders) => {
                *holders -= 1;
                let last = *holders == 0;
                if last {
                    self.free.push(block);
                }
                Ok(last)
            }
        }
    }

    /// How many hold `block`: 0 when it is free, above 1 when it is shared and must not be written.
    ///
    /// # Errors
    /// A block that does not exist is refused.
    pub fn holders(&self, block: u32) -> Result<u32, BlockPoolError> {
        let unknown = BlockPoolError::Unknown { block, total: self.holders.len() };
        self.holders.get(block as usize).copied().ok_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn grow_covers_positions_and_never_shrinks() {
        let mut pool = BlockPool::new(4, 16).unwrap();
        let mut pages = Vec::new();
        for (positions, blocks) in [(0, 0), (1, 1), (16, 1), (17, 2), (3, 2), (64, 4)] {
            pool.grow(&mut pages, positions).unwrap();
            assert_eq!(pages.len(), blocks, "{positions} positions");
        }
        assert_eq!(pages, [0, 1, 2, 3]);
        assert_eq!(pool.blocks_for(usize::MAX), usize::MAX / 16 + 1);
    }

    #[test]
    fn an_empty_pool_is_an_error_and_takes_nothing() {
        let mut pool = BlockPool::new(3, 16).unwrap();
        let mut pages = Vec::new();
        pool.grow(&mut pages, 20).unwrap();
        let error = pool.grow(&mut pages, 65).unwrap_err();
        assert_eq!(error, BlockPoolError::Exhausted { needed: 3, free: 1, total: 3 });
        assert_eq!((pages.len(), pool.free_blocks()), (2, 1));
        pool.grow(&mut pages, 48).unwrap();
        assert_eq!(BlockPool::new(3, 0).unwrap_err(), BlockPoolError::NoPositions);
    }

    #[test]
    fn a_double_free_is_refused_and_changes_nothing() {
        let mut pool = BlockPool::new(4, 1).unwrap();
        let mut pages = Vec::new();
        pool.grow(&mut pages, 3).unwrap();
        let mut stale = pages.clone();
        let mut twice = vec![pages[0], pages[1], pages[0]];
        assert_eq!(pool.free(&mut twice), Err(BlockPoolError::DoubleFree(pages[0])));
        assert_eq!((twice.len(), pool.free_blocks()), (3, 1));
        pool.free(&mut pages).unwrap();
        assert_eq!((pages.len(), pool.free_blocks()), (0, 4));
        assert!(matches!(pool.free(&mut stale), Err(BlockPoolError::DoubleFree(_))));
        assert_eq!(pool.free(&mut vec![9]), Err(BlockPoolError::Unknown { block: 9, total: 4 }));
        assert_eq!(pool.free_blocks(), 4);
    }

    #[test]
    fn a_shared_block_is_free_only_after_its_last_holder() {
        let mut pool = BlockPool::new(2, 4).unwrap();
        let mut pages = Vec::new();
        pool.grow(&mut pages, 4).unwrap();
        let block = pages[0];
        pool.retain(block).unwrap();
        let mut sharer = vec![block];
        pool.free(&mut pages).unwrap();
        assert_eq!((pool.holders(block), pool.free_blocks()), (Ok(1), 1));
        pool.free(&mut sharer).unwrap();
        assert_eq!((pool.holders(block), pool.free_blocks()), (Ok(0), 2));
        assert_eq!(pool.retain(block), Err(BlockPoolError::NotHeld(block)));
        assert_eq!(pool.release(block), Err(BlockPoolError::DoubleFree(block)));

        pool.grow(&mut pages, 4).unwrap();
        let block = pages[0];
        pool.retain(block).unwrap();
        pool.free(&mut vec![block, block]).unwrap();
        let mut all = Vec::new();
        pool.grow(&mut all, 8).unwrap();
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Grow { sequence: usize, positions: usize },
        Share { from: usize, to: usize, pages: usize },
        Free { sequence: usize },
        FreeRaw { blocks: Vec<u32> },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..4usize, 0..40usize).prop_map(|(sequence, positions)| Step::Grow { sequence, positions }),
            2 => (0..4usize, 0..4usize, 0..6usize).prop_map(|(from, to, pages)| Step::Share { from, to, pages }),
            2 => (0..4usize).prop_map(|sequence| Step::Free { sequence }),
            1 => prop::collection::vec(0..14u32, 1..4).prop_map(|blocks| Step::FreeRaw { blocks }),
        ]
    }

    proptest! {
        /// Four sequences grow, share prefixes and leave; the model is a map from block to the number of holders.
        #[test]
        fn the_pool_agrees_with_a_map_of_holders(steps in prop::collection::vec(step(), 1..80)) {
            const BLOCKS: u32 = 12;
            let mut pool = BlockPool::new(BLOCKS, 4).unwrap();
            let mut sequences: [Vec<u32>; 4] = Default::default();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Grow { sequence, positions } => {
                        let pages = &mut sequences[sequence];
                        let before = pages.clone();
                        let wanted = positions.div_ceil(4).max(before.len());
                        let fits = wanted - before.len() <= BLOCKS as usize - model.len();
                        prop_assert_eq!(pool.grow(pages, positions).is_ok(), fits);
                        prop_assert_eq!(pages.len(), if fits { wanted } else { before.len() });
                        prop_assert_eq!(&pages[..before.len()], &before[..]);
                        for &block in &pages[before.len()..] {
                            prop_assert!(block < BLOCKS);
                            prop_assert_eq!(model.insert(block, 1), None, "block {} was not free", block);
                        }
                    }
                    Step::Share { from, to, pages } => {
                        let shared: Vec<u32> = sequences[from].iter().copied().take(pages).collect();
                        for block in shared {
                            pool.retain(block).unwrap();
                            *model.get_mut(&block).unwrap() += 1;
                            sequences[to].push(block);
                        }
                    }
                    Step::Free { sequence } => {
                        let pages = std::mem::take(&mut sequences[sequence]);
                        pool.free(&mut pages.clone()).unwrap();
                        for block in pages {
                            let holders = model.get_mut(&block).unwrap();
                            *holders -= 1;
                            if *holders == 0 {
                                model.remove(&block);
                            }
                        }
                    }
                    Step::FreeRaw { blocks } => {
                        let mut after = model.clone();
                        let legal = blocks.iter().all(|block| match after.get_mut(block) {
                            Some(holders) if *holders > 0 => { *holders -= 1; true }
                            _ => false,
                        });
                        let mut list = blocks.clone();
                        prop_assert_eq!(pool.free(&mut list).is_ok(), legal);
                        prop_assert_eq!(list.is_empty(), legal);
                        if legal {
                            // Blocks a sequence still lists may now be free or another's: end the history here.
                            after.retain(|_, holders| *holders > 0);
                            prop_assert_eq!(pool.free_blocks(), BLOCKS as usize - after.len());
                            break;
                        }
                    }
                }
                prop_assert_eq!(pool.free_blocks(), BLOCKS as usize - model.len());
                for block in 0..BLOCKS {
                    prop_assert_eq!(pool.holders(block).unwrap(), model.get(&block).copied().unwrap_or(0));
                }
            }
        }
    }
}
