//! Kernels that must give the same bits are compared on the device before a plan relies on it.
//!
//! A step of one row and one of sixteen take different kernels of matmul.wgsl, few rows and many different ones of attention. The
//! order of their sums is the same as written; whether a driver keeps to it is tried on small random input, once for each pair, when
//! the first plan wants them. Where they differ, the kernel for the fewest rows serves all.

use graph::backend::DeviceError;
use tensor::DType;
use tensor::ops::KV_BLOCK;
use wgpu::BufferUsages as U;

use crate::device::{Gpu, lock};
use crate::kernel::{Binding, Kernel};
use crate::pack::{BLOCK, planes};
use crate::select::{self, KvKernel, Matmul, MatmulKernel, SEGMENTS, SPLIT};

/// Rows of activations: a whole tile of the widest kernel and part of another.
const ROWS: usize = 19;
/// Rows of weights, of each matrix: whole tiles and part of one.
const OUTPUTS: usize = 21;

/// Reproducible words (xorshift).
struct Random(u32);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// f32 of both signs between 0.5 and 2.
    fn float(&mut self) -> u32 {
        let word = self.word();
        (word & 0x807f_ffff) | if word & 0x0080_0000 == 0 { 0x3f00_0000 } else { 0x3f80_0000 }
    }

    /// Two binary16 of both signs between 2^-6 and 2^-4.
    fn halves(&mut self) -> u32 {
        (self.word() & 0x87ff_87ff) | 0x2400_2400
    }

    /// Two bfloat16 of both signs between 0.5 and 2.
    fn bfloats(&mut self) -> u32 {
        (self.word() & 0x80ff_80ff) | 0x3f00_3f00
    }

    fn words(&mut self, n: usize, draw: impl Fn(&mut Random) -> u32) -> Vec<u32> {
        (0..n).map(|_| draw(self)).collect()
    }
}

/// Whether two kernels for the same product give the same bits.
///
/// # Errors
/// The device is lost, or has no memory for some hundred kilobytes.
pub(crate) fn products(gpu: &Gpu, m: &Matmul, pair: [&MatmulKernel; 2]) -> Result<bool, DeviceError> {
    known(gpu, pair.map(|k| &k.kernel), || compare_products(gpu, m, pair))
}

/// What was found before, or is now.
fn known(
    gpu: &Gpu,
    pair: [&Kernel; 2],
    compare: impl FnOnce() -> Result<bool, DeviceError>,
) -> Result<bool, DeviceError> {
    let pair = pair.map(Kernel::clone);
    if let Some(known) = lock(&gpu.agreements).get(&pair) {
        return Ok(*known);
    }
    let agree = compare()?;
    lock(&gpu.agreements).insert(pair, agree);
    Ok(agree)
}

fn compare_products(gpu: &Gpu, m: &Matmul, pair: [&MatmulKernel; 2]) -> Result<bool, DeviceError> {
    let planes = planes(m.dtype).expect("kernels are of types of weights");
    let mut random = Random(0x9e37_79b9);
    // Enough for the unrolled loop and the one behind it, in whole super-blocks; the last block of plain types in part.
    let kernel = &pair[1].kernel;
    let [lanes, unroll] = ["LANES", "UNROLL"].map(|name| kernel.parameter(name) as usize);
    let blocks = (lanes * (unroll + 1) + 3).next_multiple_of(8);
    let k = blocks * BLOCK - if m.dtype.is_quantised() { 0 } else { 7 };
    let row_words = planes.row_words(k);
    let parts = if m.gate.is_some() { 2 } else { 1 };
    let sizes = row_words.map(|words| (parts * OUTPUTS * words).next_multiple_of(4));
    let starts = [0, sizes[0], sizes[0] + sizes[1]];
    let codes = match m.dtype {
        DType::F32 => random.words(sizes[0], Random::float),
        DType::F16 => random.words(sizes[0], Random::halves),
        DType::BF16 => random.words(sizes[0], Random::bfloats),
        _ => random.words(sizes[0], Random::word),
    };
    let high = random.words(sizes[1], Random::word);
    let weights = [codes, high, random.words(sizes[2], Random::halves)].concat();
    let acts = random.words(ROWS * blocks * BLOCK / 4, Random::word);
    let meta = random.words(2 * ROWS * blocks, |r| r.float() & 0xbfff_03ff);
    let x = random.words(ROWS * k, Random::float);

    let mut params = [ROWS, u32::MAX as usize, 1, blocks, k, 0, k].map(|v| v as u32).to_vec();
    params.extend([row_words[0] / 4, row_words[1], row_words[2], 0, 0, 0, 1, 1, 1].map(|v| v as u32));
    for part in 0..parts {
        let at = |plane: usize| starts[plane] + part * OUTPUTS * row_words[plane];
        params.extend([OUTPUTS, x.len(), OUTPUTS].map(|v| v as u32));
        params.push(u32::MAX);
        params.extend([at(0) / 4, at(1), at(2), 0].map(|v| v as u32));
    }
    params.resize(16 + 8 * SEGMENTS, 0);

    let bench = Bench { gpu };
    let weights = bench.storage(&weights)?;
    let named = |binding: &Binding| match binding {
        Binding::Read("acts", _) => bench.storage(&acts),
        Binding::Read("meta_", _) => bench.storage(&meta),
        _ => Ok(weights.clone()),
    };
    let mut results = vec![];
    for each in pair {
        let tiles = OUTPUTS.div_ceil(each.rows * each.tiles);
        let grid = [tiles as u32, ROWS.div_ceil(each.columns) as u32, 1];
        let arena = [&x[..], &vec![0; ROWS * OUTPUTS]].concat();
        let arena = bench.run(&each.kernel, &arena, &params, grid, named)?;
        results.push(arena[x.len()..].to_vec());
    }
    Ok(results[0] == results[1])
}

/// Whether attention gives the same bits by one workgroup that walks the splits of keys as by one for each split.
///
/// # Errors
/// The device is lost, or has no memory for some megabytes.
pub(crate) fn attention(gpu: &Gpu, kv: KvKernel) -> Result<bool, DeviceError> {
    let [walked, split] = [false, true].map(|split| select::attention(&gpu.capabilities, kv, split));
    known(gpu, [&walked, &split], || compare_attention(gpu, kv, &walked, &split))
}

fn compare_attention(gpu: &Gpu, kv: KvKernel, walked: &Kernel, split: &Kernel) -> Result<bool, DeviceError> {
    // One KV head and two that read it; the last row sees two splits and a part, the first some of one.
    const ENDS: [usize; 2] = [SPLIT - 3, 2 * SPLIT + 71];
    const HEADS: usize = 2;
    let rows = ENDS.len();
    let (blocks, splits) = (ENDS[1].div_ceil(KV_BLOCK), ENDS[1].div_ceil(SPLIT));
    let mut random = Random(0x85eb_ca6b);
    let dtype = if kv.half { DType::F16 } else { DType::F32 };
    let (_, row_words) = crate::state::kv_row_words(dtype, kv.k_dim, kv.v_dim);
    let mut cache =
        random.words(blocks * KV_BLOCK * row_words, if kv.half { Random::halves } else { Random::float });
    if kv.half {
        // The factors of keys and values.
        cache.chunks_mut(row_words).for_each(|row| row[row_words - 2..].fill(2f32.to_bits()));
    }
    let q = random.words(rows * HEADS * kv.k_dim, Random::float);
    let out_at = q.len();
    let (out, stride) = (rows * HEADS * kv.v_dim, HEADS * kv.v_dim);
    let pos_at = out_at + out;
    let step = ENDS.map(|end| end - 1).into_iter().chain(ENDS).chain([0, 0]).chain(0..blocks);
    let arena = [q, vec![0; out], step.map(|word| word as u32).collect()].concat();
    let [until_at, seq_at, pages_at] = [1, 2, 3].map(|i| pos_at + i * rows);
    let counts = [rows, u32::MAX as usize, 1, HEADS].map(|v| v as u32);
    let shape = [HEADS, blocks, blocks, splits, 0, HEADS * kv.k_dim, out_at, stride].map(|v| v as u32);
    let at = [pos_at, until_at, seq_at, pages_at].map(|v| v as u32);
    let scale = 1.0 / (kv.k_dim as f32).sqrt();
    let params = [&counts[..], &shape, &at, &[scale.to_bits(), u32::MAX, 0, 0]].concat();
    let merging = [splits, out_at, stride, pos_at, until_at, u32::MAX as usize].map(|v| v as u32);

    let bench = Bench { gpu };
    let cache = bench.storage(&cache)?;
    let parts = bench.storage(&vec![0; rows * HEADS * splits * (kv.v_dim + 2)])?;
    let named = |binding: &Binding| match binding {
        Binding::Read("parts", _) | Binding::Write("parts", _) => Ok(parts.clone()),
        _ => Ok(cache.clone()),
    };
    let [heads, rows] = [HEADS, rows].map(|v| v as u32);
    let walked = bench.run(walked, &arena, &params, [1, heads, rows], named)?;
    bench.run(split, &arena, &params, [splits as u32, heads, rows], named)?;
    let grid = [kv.v_dim.div_ceil(64) as u32, heads, rows];
    let merged =
        bench.run(&select::merge(kv.v_dim), &arena, &[&counts[..], &merging].concat(), grid, named)?;
    Ok(walked == merged)
}

/// Runs single kernels.
struct Bench<'a> {
    gpu: &'a Gpu,
}

impl Bench<'_> {
    fn filled(&self, words: &[u32], usage: U) -> Result<wgpu::Buffer, DeviceError> {
        let buffer =
            self.gpu.buffer("a comparison of kernels", 4 * words.len() as u64, usage | U::COPY_DST)?;
        self.gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        Ok(buffer)
    }

    fn storage(&self, words: &[u32]) -> Result<wgpu::Buffer, DeviceError> {
        self.filled(words, U::STORAGE)
    }

    /// The arena after a dispatch; `named` gives what is bound beside arena, parameters and scalars.
    fn run(
        &self,
        kernel: &Kernel,
        arena: &[u32],
        params: &[u32],
        grid: [u32; 3],
        named: impl Fn(&Binding) -> Result<wgpu::Buffer, DeviceError>,
    ) -> Result<Vec<u32>, DeviceError> {
        let pipeline = self.gpu.pipeline(kernel)?;
        let arena = self.filled(arena, U::STORAGE | U::COPY_SRC)?;
        let params = self.filled(params, U::UNIFORM)?;
        let scalars = self.filled(&[0; 8], U::UNIFORM)?;
        let mut buffers = vec![];
        for binding in kernel.bindings() {
            buffers.push(match binding {
                Binding::Arena => arena.clone(),
                Binding::Params => params.clone(),
                Binding::Scalars => scalars.clone(),
                Binding::Read(..) | Binding::Write(..) => named(&binding)?,
            });
        }
        self.gpu.dispatch(&pipeline, &buffers, grid);
        crate::copy::read(self.gpu, &arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{GpuOptions, Profile, open};
    use crate::select::Elementwise;

    fn m(dtype: DType, integer: bool, gate: Option<Elementwise>, rows: usize) -> Matmul {
        Matmul { dtype, integer, experts: false, rows, gate, outputs: 9, blocks: 100 }
    }

    /// Products of few rows and many agree on this device; sums in another order do not.
    #[test]
    fn pairs_are_told_apart() {
        for profile in [Profile::WebGpu, Profile::Adapter] {
            let options = GpuOptions { profile, ..GpuOptions::default() };
            let gpu = pollster::block_on(open(&options)).unwrap_or_else(|e| panic!("{e}"));
            for (dtype, integer, gate) in [
                (DType::Q4_K, true, None),
                (DType::Q6_K, false, None),
                (DType::BF16, false, Some(Elementwise::SiluMul)),
                (DType::Q4_0, true, Some(Elementwise::GeluTanhMul)),
            ] {
                let [one, many] = [1, 4]
                    .map(|rows| select::matmul(&gpu.capabilities, m(dtype, integer, gate, rows)).unwrap());
                assert_ne!(one.kernel, many.kernel);
                assert_eq!(products(&gpu, &m(dtype, integer, gate, 1), [&one, &many]), Ok(true), "{dtype}");
            }
            for kv in [(false, 24, 8), (true, 64, 64), (true, 7, 80)] {
                let kv = KvKernel { half: kv.0, k_dim: kv.1, v_dim: kv.2 };
                assert_eq!(attention(&gpu, kv), Ok(true));
            }
            if profile == Profile::WebGpu {
                let kv = KvKernel { half: true, k_dim: 32, v_dim: 32 };
                let [whole, other] = [32, 30].map(|k_dim| {
                    let mut kernel = select::attention(&gpu.capabilities, kv, false);
                    kernel.parameters.iter_mut().filter(|p| p.0 == "DK").for_each(|p| p.1 = k_dim);
                    kernel
                });
                let split = select::attention(&gpu.capabilities, kv, true);
                assert_eq!(compare_attention(&gpu, kv, &whole, &split), Ok(true));
                assert_eq!(compare_attention(&gpu, kv, &other, &split), Ok(false));
                let long = m(DType::F16, false, None, 1);
                let [few, many] = [8, 100]
                    .map(|blocks| select::matmul(&gpu.capabilities, Matmul { blocks, ..long }).unwrap());
                assert_ne!(few.kernel.parameter("LANES"), many.kernel.parameter("LANES"));
                assert_eq!(products(&gpu, &long, [&few, &many]), Ok(false));
            }
        }
    }
}
