//! How much KV cache and recurrent state there is, and who holds it.

use std::ops::Range;
use std::sync::Arc;

use graph::BlockPool;
use graph::backend::{Backend, KvType, StateDesc};
use models::ModelInfo;
use tensor::ops::KV_BLOCK;
use tensor::{DType, Shape};

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
    /// Sequences at once.
    pub sequences: usize,
    /// Slots: one per sequence, and with recurrent states a second one for the state at the prompt's end, which a session keeps
    /// beside that at the end of the output.
    pub slots: usize,
    /// KV bytes of one token over all layers.
    pub bytes_per_token: u64,
    /// Recurrent-state bytes of one slot.
    pub bytes_per_slot: u64,
}

impl CacheSize {
    /// Chooses sizes: the context asked for or trained, a pool for `max_sequences` of them, both cut to what the devices have
    /// room for beside `weights` bytes, of which each has those of its layers. A block has a part on every device, so the
    /// tightest memory decides; devices that share one have it once.
    ///
    /// # Errors
    /// The context asked for is not supported or does not fit; [`EngineOptions::layers`] that do not go with the devices; an
    /// [`EngineOptions::kv_type`] that one of them does not have.
    pub fn choose(
        info: &ModelInfo,
        options: &EngineOptions,
        devices: &[Arc<dyn Backend>],
        weights: u64,
    ) -> Result<CacheSize, EngineError> {
        let stages = options.stages(devices.len(), info.layers)?;
        options.check_kv_type(info, &stages, devices)?;
        let size = CacheSize::of_memories(info, options, &memories(&stages, devices), weights)?;
        let stages = stages.iter().zip(devices);
        stages.into_iter().try_fold(size, |size, (layers, device)| {
            let fit = most_blocks(info, options.kv_type_for(info).dtype(), layers, &**device, size.blocks);
            size.cut_to(fit, options.context, &**device)
        })
    }

    fn of_memories(
        info: &ModelInfo,
        options: &EngineOptions,
        memories: &[Memory],
        weights: u64,
    ) -> Result<CacheSize, EngineError> {
        if let [memory] = memories {
            return CacheSize::of_memory(info, options, memory.bytes, weights);
        }
        // A limit that is set for the cache is of all together.
        let mut size = CacheSize::of_memory(info, options, None, weights)?;
        let unlimited = EngineOptions { cache_bytes: None, ..options.clone() };
        for memory in memories {
            let mut part = info.clone();
            part.kv.retain(|kv| memory.has(kv.layer));
            part.rings.retain(|ring| memory.has(ring.layer));
            let layers = memory.stages.iter().map(|stage| stage.len() as u64).sum::<u64>();
            let weights = weights / info.layers.max(1) as u64 * layers;
            let fits = CacheSize::of_memory(&part, &unlimited, memory.bytes, weights)?;
            (size.context, size.blocks) = (size.context.min(fits.context), size.blocks.min(fits.blocks));
        }
        Ok(size)
    }

    fn of_memory(
        info: &ModelInfo,
        options: &EngineOptions,
        memory: Option<u64>,
        weights: u64,
    ) -> Result<CacheSize, EngineError> {
        let kv = options.kv_type_for(info);
        // A row may carry a 4-byte factor for each of k and v per head, where it has no scales.
        let factors = if kv == KvType::Q8_0 { 0 } else { 8 };
        let row = |heads: usize, dims: usize| heads * (kv.bytes_for(dims) + factors);
        let bytes_per_token = info.kv.iter().map(|k| row(k.heads, k.k_dim + k.v_dim) as u64).sum::<u64>();
        let bytes_per_slot = info.rings.iter().map(|r| (r.length * r.width * 4) as u64).sum::<u64>();
        let sequences = options.max_sequences;
        let slots = if info.recurrent() { 2 * sequences } else { sequences };
        let wanted = wanted_context(info, options)?;
        let available =
            options.cache_bytes.or_else(|| memory.map(|m| (m.saturating_sub(weights) as f64 * SHARE) as u64));
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
        Ok(CacheSize { context, blocks, sequences, slots, bytes_per_token, bytes_per_slot })
    }

    /// With at most so many blocks, which is what a device can have in one state.
    fn cut_to(
        self,
        fit: usize,
        asked: Option<usize>,
        device: &dyn Backend,
    ) -> Result<CacheSize, EngineError> {
        if fit == 0 || asked.is_some() && fit < blocks_for(self.context) {
            return Err(EngineError::ContextTooLong {
                device: device.name().to_owned(),
                context: self.context,
                fits: fit * KV_BLOCK,
            });
        }
        Ok(CacheSize { context: self.context.min(fit * KV_BLOCK), blocks: self.blocks.min(fit), ..self })
    }

    /// Bytes of the whole pool and all slots.
    pub fn bytes(&self) -> u64 {
        self.bytes_per_token * (self.blocks * KV_BLOCK) as u64 + self.bytes_per_slot * self.slots as u64
    }
}

/// Blocks of a sequence of so many tokens.
fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(KV_BLOCK).max(1)
}

/// A memory, and the layers that lie in it.
struct Memory {
    name: Option<String>,
    bytes: Option<u64>,
    stages: Vec<Range<usize>>,
}

impl Memory {
    fn has(&self, layer: usize) -> bool {
        self.stages.iter().any(|stage| stage.contains(&layer))
    }
}

/// The memories of devices that have these layers, each memory once.
fn memories(stages: &[Range<usize>], devices: &[Arc<dyn Backend>]) -> Vec<Memory> {
    let mut memories: Vec<Memory> = vec![];
    for (layers, device) in stages.iter().zip(devices) {
        let (name, bytes) = (device.memory_name(), device.memory_limit());
        match memories.iter_mut().find(|memory| name.is_some() && memory.name == name) {
            Some(memory) => {
                memory.stages.push(layers.clone());
                memory.bytes = memory.bytes.into_iter().chain(bytes).min();
            }
            None => memories.push(Memory { name, bytes, stages: vec![layers.clone()] }),
        }
    }
    memories
}

/// The most blocks, up to `wanted`, that a device can have in the KV cache of each of these layers.
fn most_blocks(
    info: &ModelInfo,
    dtype: DType,
    layers: &Range<usize>,
    device: &dyn Backend,
    wanted: usize,
) -> usize {
    let fits = |blocks: usize| {
        info.kv.iter().filter(|kv| layers.contains(&kv.layer)).all(|kv| {
            let shape = Shape::new(&[blocks, KV_BLOCK, kv.heads, kv.k_dim + kv.v_dim]);
            shape.is_ok_and(|shape| {
                device.state_fits(&StateDesc { name: models::kv_state(kv.layer), dtype, shape })
            })
        })
    };
    if fits(wanted) {
        return wanted;
    }
    let (mut most, mut too_many) = (0, wanted);
    while too_many - most > 1 {
        let middle = most + (too_many - most) / 2;
        if fits(middle) {
            most = middle;
        } else {
            too_many = middle;
        }
    }
    most
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
    /// What steps leave the recurrent state and the drawn token in.
    pub(crate) slot: Option<u32>,
    /// For the recurrent state at the prompt's end.
    pub(crate) snapshot: Option<u32>,
}

impl Holding {
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.slot.is_none() && self.snapshot.is_none()
    }
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

    /// A slot where there is none yet, if one is free.
    pub(crate) fn take_slot(&mut self, slot: &mut Option<u32>) -> bool {
        *slot = slot.take().or_else(|| self.free_slots.pop());
        slot.is_some()
    }

    /// Extends a holding to so many positions; false, unchanged, when blocks run out.
    pub(crate) fn grow(&mut self, holding: &mut Holding, positions: usize) -> bool {
        self.pool.grow(&mut holding.pages, positions).is_ok()
    }

    /// Blocks that a holding lacks for so many positions and that are not free.
    pub(crate) fn missing(&self, holding: &Holding, positions: usize) -> usize {
        let wanted = self.pool.blocks_for(positions).saturating_sub(holding.pages.len());
        wanted.saturating_sub(self.pool.free_blocks())
    }

    /// Takes the blocks back that lie behind so many positions.
    pub(crate) fn cut(&mut self, holding: &mut Holding, positions: usize) {
        let keep = self.pool.blocks_for(positions).min(holding.pages.len());
        self.free_pages(&mut holding.pages.split_off(keep));
    }

    pub(crate) fn free_slot(&mut self, slot: &mut Option<u32>) {
        self.free_slots.extend(slot.take());
    }

    /// Takes everything back.
    pub(crate) fn free(&mut self, holding: &mut Holding) {
        self.free_pages(&mut holding.pages);
        self.free_slot(&mut holding.slot);
        self.free_slot(&mut holding.snapshot);
    }

    fn free_pages(&mut self, pages: &mut Vec<u32>) {
        let freed = self.pool.free(pages);
        debug_assert!(freed.is_ok(), "a sequence holds only blocks it was given");
    }
}

#[cfg(test)]
mod tests {
    use graph::backend::{
        CompileOptions, DeviceError, Plan, Reading, Reopening, RowSource, StateHandle, WeightDesc,
        WeightHandle,
    };
    use graph::{Fence, Graph};
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
            tied_embedding: true,
            quantised: false,
            parameters: 1,
        }
    }

    /// A device of which only what it says of its memory is asked.
    struct Room {
        memory: Option<u64>,
        name: Option<&'static str>,
        most: usize,
    }

    impl Backend for Room {
        fn name(&self) -> &str {
            "room"
        }
        fn description(&self) -> String {
            String::new()
        }
        fn memory_limit(&self) -> Option<u64> {
            self.memory
        }
        fn memory_name(&self) -> Option<String> {
            self.name.map(str::to_owned)
        }
        fn kv_types(&self) -> &[KvType] {
            &[KvType::F32]
        }
        fn state_fits(&self, desc: &StateDesc) -> bool {
            desc.dtype == DType::F32 && desc.shape.elements() <= self.most
        }
        fn reopen(&self) -> Reopening {
            unreachable!()
        }
        fn weight(&self, _: &WeightDesc, _: &dyn RowSource) -> Result<WeightHandle, DeviceError> {
            unreachable!()
        }
        fn state(&self, _: &StateDesc) -> Result<StateHandle, DeviceError> {
            unreachable!()
        }
        fn entry_bytes(&self, _: &StateHandle) -> Result<usize, DeviceError> {
            unreachable!()
        }
        fn read_state(&self, _: &StateHandle, _: &[u32]) -> Result<Reading, DeviceError> {
            unreachable!()
        }
        fn write_state(&self, _: &StateHandle, _: &[u32], _: &[u8]) -> Result<Fence, DeviceError> {
            unreachable!()
        }
        fn compile(&self, _: &Graph, _: &CompileOptions) -> Result<Arc<dyn Plan>, DeviceError> {
            unreachable!()
        }
    }

    fn room(memory: Option<u64>, name: Option<&'static str>) -> Arc<dyn Backend> {
        Arc::new(Room { memory, name, most: usize::MAX })
    }

    fn options() -> EngineOptions {
        EngineOptions { max_sequences: 4, layers: Some(vec![6, 2]), ..EngineOptions::default() }
    }

    /// Memory for so many blocks of these layers of `info(8, 2, 64, 0, _)`.
    fn enough(layers: u64, blocks: u64) -> Option<u64> {
        Some(layers * blocks * (2 * (2 * 64 * 4 + 8) * 16) * 5 / 4 + 64)
    }

    /// The device with the least memory for its layers decides for all.
    #[test]
    fn the_tightest_of_several_devices_decides() {
        let (info, options) = (info(8, 2, 64, 0, 4096), options());
        let split = |memory: [Option<u64>; 2]| {
            let devices = memory.map(|memory| room(memory, None));
            CacheSize::choose(&info, &options, &devices, 0)
        };
        let free = split([None, None]).unwrap();
        assert_eq!((free.context, free.blocks), (4096, 4 * 256));
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
        let limited = EngineOptions { cache_bytes: Some(free.bytes_per_token * 16 * 50), ..options.clone() };
        let size = CacheSize::choose(&info, &limited, &[room(None, None), room(None, None)], 0).unwrap();
        assert_eq!(size.blocks, 50);
    }

    /// What is free of a memory is free once, however many devices take from it.
    #[test]
    fn devices_of_one_memory_share_what_is_free_of_it() {
        let (info, options) = (info(8, 2, 64, 0, 4096), options());
        let blocks = |devices: [(Option<u64>, Option<&'static str>); 2], weights: u64| {
            let devices = devices.map(|(memory, name)| room(memory, name));
            CacheSize::choose(&info, &options, &devices, weights).unwrap().blocks
        };
        let all = enough(8, 100).unwrap();
        let (one, other, own) = (Some("one"), Some("other"), None);
        assert_eq!(blocks([(Some(all), one), (Some(all), one)], 0), 100);
        assert_eq!(blocks([(Some(all), one), (None, one)], 0), 100, "one of them knows what is free");
        assert_eq!(blocks([(Some(all), one), (Some(2 * all), one)], 0), 100, "the less decides");
        // All weights lie in it.
        assert_eq!(blocks([(Some(all + 800), one), (Some(all + 800), one)], 800), 100);
        // Without sharing, the six layers on the first device decide.
        assert_eq!(blocks([(Some(all), one), (Some(all), other)], 0), 133);
        assert_eq!(blocks([(Some(all), own), (Some(all), own)], 0), 133, "memories without a name are two");
    }

    /// However much memory there is, one state may have only so many bytes on a device.
    #[test]
    fn a_context_is_what_one_state_can_hold() {
        let info = info(8, 2, 64, 0, 1 << 20);
        let block = 16 * 2 * 128;
        let device = |most: usize| -> Arc<dyn Backend> { Arc::new(Room { memory: None, name: None, most }) };
        let alone = EngineOptions { layers: None, ..options() };
        let asked = |context: usize| EngineOptions { context: Some(context), ..alone.clone() };
        let size = CacheSize::choose(&info, &alone, &[device(100 * block + 1)], 0).unwrap();
        assert_eq!((size.context, size.blocks), (1600, 100));
        let size =
            CacheSize::choose(&info, &options(), &[device(usize::MAX), device(30 * block)], 0).unwrap();
        assert_eq!((size.context, size.blocks), (480, 30));
        let size = CacheSize::choose(&info, &asked(1600), &[device(100 * block)], 0).unwrap();
        assert_eq!((size.context, size.blocks), (1600, 100));
        for (context, fits) in [(1601, 1600), (MAX_CONTEXT, 1600)] {
            let refused = CacheSize::choose(&info, &asked(context), &[device(100 * block)], 0);
            let device = "room".to_owned();
            assert_eq!(refused, Err(EngineError::ContextTooLong { device, context, fits }));
        }
        let nothing = CacheSize::choose(&info, &alone, &[device(block - 1)], 0);
        assert!(matches!(nothing, Err(EngineError::ContextTooLong { fits: 0, .. })), "{nothing:?}");
    }

    #[test]
    fn a_type_that_a_device_does_not_have_is_refused_where_it_keeps_layers() {
        let q8 = EngineOptions { kv_type: Some(KvType::Q8_0), ..options() };
        let refused =
            CacheSize::choose(&info(8, 2, 64, 0, 512), &q8, &[room(None, None), room(None, None)], 0);
        let Err(EngineError::Option { option: "kv_type", problem }) = refused else { panic!("{refused:?}") };
        for part in ["room", "q8_0", "choose f32"] {
            assert!(problem.contains(part), "{problem}");
        }
        // No layer of it has keys.
        let none = info(0, 2, 64, 8, 512);
        assert!(CacheSize::choose(&none, &q8, &[room(None, None), room(None, None)], 0).is_ok());
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
            match CacheSize::choose(&info, &options, &[room(memory, None)], weights) {
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
