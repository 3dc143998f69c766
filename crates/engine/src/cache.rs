//! How much KV cache and recurrent state there is, and who holds it.

use std::ops::Range;

use graph::BlockPool;
use models::ModelInfo;
use tensor::ops::KV_BLOCK;

use crate::error::EngineError;
use crate::options::{EngineOptions, MAX_CONTEXT};

/// Fraction of the device's free memory that the cache may take when no size is given.
const SHARE: f64 = 0.8;

/// Sizes of the cache, fixed when the engine is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSize {
    /// Most tokens of a sequence, prompt and output together.
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
                    let bytes_for =
                        |blocks: usize| state.saturating_add(block_bytes.saturating_mul(blocks as u64));
                    return Err(EngineError::CacheTooSmall {
                        context: wanted,
                        needed: bytes_for(blocks_for(wanted)),
                        available,
                        given: options.cache_bytes.is_some(),
                        fits: fit.saturating_mul(KV_BLOCK),
                        least: bytes_for(1),
                    });
                }
                (wanted.min(fit.saturating_mul(KV_BLOCK)), all.min(fit))
            }
            _ => (wanted, all),
        };
        // Blocks are counted in 32 bits.
        let blocks = blocks.min(u32::MAX as usize);
        Ok(CacheSize { context, blocks, slots, bytes_per_token, bytes_per_slot })
    }

    /// As [`CacheSize::choose`] for a model split over devices: for each its layers and its free memory. A block has a part
    /// on every device, so what fits the tightest of them decides.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn choose_split(
        info: &ModelInfo,
        options: &EngineOptions,
        devices: &[(Range<usize>, Option<u64>)],
        weights: u64,
    ) -> Result<CacheSize, EngineError> {
        if let [(_, memory)] = devices {
            return CacheSize::choose(info, options, *memory, weights);
        }
        let mut size = CacheSize::choose(info, options, None, weights)?;
        for (layers, memory) in devices {
            let mut part = info.clone();
            part.kv.retain(|kv| layers.contains(&kv.layer));
            part.rings.retain(|ring| layers.contains(&ring.layer));
            let weights = weights / info.layers.max(1) as u64 * layers.len() as u64;
            let unlimited = EngineOptions { cache_bytes: None, ..options.clone() };
            let fits = CacheSize::choose(&part, &unlimited, *memory, weights)?;
            (size.context, size.blocks) = (size.context.min(fits.context), size.blocks.min(fits.blocks));
        }
        Ok(size)
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
        None => Ok(info.context.min(limit).clamp(1, MAX_CONTEXT)),
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

#[cfg(test)]
mod tests {
    use models::{KvSpec, RingSpec};
    use proptest::prelude::*;

    use super::*;

    fn info(layers: usize, heads: usize, dim: usize, rings: usize, context: usize) -> ModelInfo {
        let kv = |layer| KvSpec { layer, heads, k_dim: dim, v_dim: dim, window: None };
        let ring = |layer| RingSpec { layer, length: 3, width: 64 };
        ModelInfo {
            name: String::new(),
            architecture: "test",
            vocab: 10,
            context,
            position_limit: None,
            hidden: 64,
            layers: layers + rings,
            kv: (0..layers).map(kv).collect(),
            rings: (0..rings).map(ring).collect(),
            recurrent: rings > 0,
            tied_embedding: true,
            quantised: false,
            parameters: 1,
            bos: None,
            eos: vec![],
        }
    }

    /// The device with the least memory for its layers decides for all.
    #[test]
    fn the_tightest_of_several_devices_decides() {
        let info = info(8, 2, 64, 0, 4096);
        let options = EngineOptions { max_sequences: 4, ..EngineOptions::default() };
        let split = |memory: [Option<u64>; 2]| {
            let devices = [(0..6, memory[0]), (6..8, memory[1])];
            CacheSize::choose_split(&info, &options, &devices, 0)
        };
        let free = split([None, None]).unwrap();
        assert_eq!((free.context, free.blocks), (4096, 4 * 256));
        let bytes = free.bytes_per_token / 8 * 16; // of a block on one layer
        let enough = |layers: u64, blocks: u64| Some((layers * blocks * bytes) * 5 / 4 + 64);
        for (memory, blocks) in [
            ([enough(6, 300), None], 300),
            ([None, enough(2, 300)], 300),
            ([enough(6, 500), enough(2, 100)], 100),
            ([enough(6, 100), enough(2, 500)], 100),
        ] {
            let size = split(memory).unwrap();
            assert_eq!((size.blocks, size.context), (blocks, 4096.min(16 * blocks)), "{memory:?}");
            assert_eq!(size.bytes_per_token, free.bytes_per_token);
        }
        assert!(matches!(split([Some(10), None]), Err(EngineError::CacheTooSmall { .. })));
        // A limit set for the cache is of all devices together.
        let limited = EngineOptions { cache_bytes: Some(bytes * 8 * 50), ..options.clone() };
        let size = CacheSize::choose_split(&info, &limited, &[(0..6, None), (6..8, None)], 0).unwrap();
        assert_eq!(size.blocks, 50);
    }

    proptest! {
        /// What lets the scheduler rely on one sequence alone never running out of blocks.
        #[test]
        fn the_pool_holds_a_whole_context(
            (layers, heads, dim, rings) in (0..5usize, 1..4usize, 1..130usize, 0..3usize),
            trained in prop::sample::select(vec![1usize, 16, 17, 100, 8192, 1 << 40]),
            context in prop::option::of(prop::sample::select(vec![1usize, 15, 16, 17, 4096, crate::MAX_CONTEXT])),
            max_sequences in 1..1025usize,
            cache_bytes in prop::option::of(0..1u64 << 34),
            memory in prop::option::of(0..1u64 << 40),
            weights in 0..1u64 << 38,
        ) {
            let options = EngineOptions { context, max_sequences, cache_bytes, ..EngineOptions::default() };
            let info = info(layers, heads, dim, rings, trained);
            match CacheSize::choose(&info, &options, memory, weights) {
                Ok(size) => {
                    prop_assert!(size.blocks * KV_BLOCK >= size.context && size.context >= 1);
                    prop_assert!(size.blocks <= u32::MAX as usize && size.context <= crate::MAX_CONTEXT);
                    prop_assert!(context.is_none_or(|asked| asked == size.context));
                    let available = cache_bytes.or(memory);
                    prop_assert!(layers == 0 || available.is_none_or(|bytes| size.bytes() <= bytes));
                }
                Err(EngineError::CacheTooSmall { needed, available, least, fits, .. }) => {
                    prop_assert!(needed > available && least <= needed);
                    prop_assert!(context.is_none() || fits < context.unwrap());
                    prop_assert_eq!(fits == 0, least > available);
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}
