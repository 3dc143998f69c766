//! How much KV cache and recurrent state there is, and who holds it.

use graph::BlockPool;
use models::ModelInfo;
use tensor::ops::KV_BLOCK;

use crate::error::EngineError;
use crate::options::EngineOptions;

/// Fraction of the device's free memory that the cache may take when no size is given.
const SHARE: f64 = 0.8;

/// Sizes of the cache, fixed when the engine is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSize {
    /// Longest sequence, in tokens.
    pub context: usize,
    /// KV blocks in the pool.
    pub blocks: usize,
    /// Recurrent-state slots: one per sequence.
    pub slots: usize,
    /// KV bytes of one token over all layers.
    pub bytes_per_token: u64,
    /// Recurrent-state bytes of one slot.
    pub bytes_per_slot: u64,
}

impl CacheSize {
    /// Chooses sizes: the context asked for or trained, a pool for `max_sequences` of them, both cut to what fits in
    /// `memory` bytes beside `weights` bytes.
    ///
    /// # Errors
    /// The context asked for is not supported or does not fit.
    pub fn choose(
        info: &ModelInfo,
        options: &EngineOptions,
        memory: Option<u64>,
        weights: u64,
    ) -> Result<CacheSize, EngineError> {
        let kv = options.kv_dtype(info);
        // A KV row may carry a 4-byte scale for each of k and v per head.
        let row = |heads: usize, dims: usize| heads * (dims * kv.block_bytes() + 8);
        let bytes_per_token = info.kv.iter().map(|k| row(k.heads, k.k_dim + k.v_dim) as u64).sum::<u64>();
        let bytes_per_slot = info.rings.iter().map(|r| (r.length * r.width * 4) as u64).sum::<u64>();
        let slots = options.max_sequences;
        let wanted = wanted_context(info, options)?;
        let available =
            options.cache_bytes.or_else(|| memory.map(|m| (m.saturating_sub(weights) as f64 * SHARE) as u64));
        let blocks_for = |tokens: usize| tokens.div_ceil(KV_BLOCK).max(1);
        let all = blocks_for(wanted).saturating_mul(options.max_sequences);
        let (context, blocks) = match available {
            Some(available) if bytes_per_token > 0 => {
                let state = bytes_per_slot * slots as u64;
                let block_bytes = bytes_per_token * KV_BLOCK as u64;
                let fit = (available.saturating_sub(state) / block_bytes) as usize;
                let asked = options.context.is_some();
                if fit == 0 || (asked && fit < blocks_for(wanted)) {
                    return Err(EngineError::CacheTooSmall {
                        what: format!("a context of {wanted} tokens"),
                        needed: state.saturating_add(block_bytes.saturating_mul(blocks_for(wanted) as u64)),
                        available,
                        fits: fit * KV_BLOCK,
                    });
                }
                (wanted.min(fit * KV_BLOCK), all.min(fit))
            }
            _ => (wanted, all),
        };
        Ok(CacheSize { context, blocks, slots, bytes_per_token, bytes_per_slot })
    }

    /// Bytes of the whole pool and all slots.
    pub fn bytes(&self) -> u64 {
        self.bytes_per_token * (self.blocks * KV_BLOCK) as u64 + self.bytes_per_slot * self.slots as u64
    }
}

/// The context asked for, or the trained one.
fn wanted_context(info: &ModelInfo, options: &EngineOptions) -> Result<usize, EngineError> {
    let limit = info.position_limit.unwrap_or(usize::MAX);
    match options.context {
        Some(asked) if asked > limit => Err(EngineError::Option {
            option: "context",
            problem: format!("is {asked}; this model's rotary scaling is supported up to {limit} tokens"),
        }),
        Some(asked) => Ok(asked),
        None => Ok(info.context.min(limit).max(1)),
    }
}

/// The cache a sequence holds.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    pub(crate) pages: Vec<u32>,
    pub(crate) slot: Option<u32>,
}

/// Hands out blocks and slots.
pub(crate) struct Cache {
    pool: BlockPool,
    free_slots: Vec<u32>,
}

impl Cache {
    pub(crate) fn new(size: &CacheSize) -> Result<Cache, EngineError> {
        let too_many = |e: &dyn std::fmt::Display| EngineError::Model(e.to_string());
        let blocks = u32::try_from(size.blocks).map_err(|e| too_many(&e))?;
        let pool = BlockPool::new(blocks, KV_BLOCK).map_err(|e| too_many(&e))?;
        Ok(Cache { pool, free_slots: (0..size.slots as u32).rev().collect() })
    }

    /// A slot for a new sequence, if one is free.
    pub(crate) fn take_slot(&mut self, holding: &mut Holding) -> bool {
        if holding.slot.is_none() {
            holding.slot = self.free_slots.pop();
        }
        holding.slot.is_some()
    }

    /// Extends a holding to so many positions; false, unchanged, when blocks run out.
    pub(crate) fn grow(&mut self, holding: &mut Holding, positions: usize) -> bool {
        self.pool.grow(&mut holding.pages, positions).is_ok()
    }

    /// Takes everything back.
    pub(crate) fn free(&mut self, holding: &mut Holding) {
        let freed = self.pool.free(&mut holding.pages);
        debug_assert!(freed.is_ok(), "a sequence holds only blocks it was given");
        holding.pages.clear();
        self.free_slots.extend(holding.slot.take());
    }
}
