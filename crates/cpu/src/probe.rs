//! What this machine's memory and integer units can do, measured with the workers that run models: the limits that
//! speeds are compared with.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::isa::{CpuIsa, Isa, Kernel};
use crate::memory::{HugeBuf, MemoryError};
use crate::pool::{Pool, PoolError, Worker};

/// Passes of each measurement at least. The median counts: what a run of a second can reach is
/// what memory gives for a while, not in its best 5 ms (two cores of a server gave 72 to 92 GB/s as the best of five passes,
/// in turn, while a model decoded with 67 to 73 tokens a second).
const PASSES: usize = 5;

/// How long the passes of a measurement take together at least.
const SPAN: Duration = Duration::from_millis(250);

/// Dots in flight: enough to hide their latency in the registers of every instruction set.
const CHAINS: usize = 12;

/// Steps of the register loop in one pass: some tens of milliseconds.
const STEPS: usize = 4 << 20;

/// Measured limits of a pool's workers together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes per second when all workers read memory.
    pub read_bytes: f64,
    /// Multiplications and additions of bytes per second, each counted as one operation, when all workers do nothing
    /// but the integer dot of the instruction set.
    pub int_ops: f64,
}

/// Why the limits could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No memory for the buffer that is read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A worker failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Limits {
    /// Measures both limits. `bytes` is the size of the buffer that is read: much larger than the caches, or it is
    /// their speed that is measured.
    ///
    /// # Errors
    /// No memory for the buffer, or a worker failed.
    pub fn measure(pool: &Pool, isa: CpuIsa, bytes: usize) -> Result<Limits, ProbeError> {
        Ok(Limits { read_bytes: read_bandwidth(pool, isa, bytes)?, int_ops: int_peak(pool, isa)? })
    }
}

fn read_bandwidth(pool: &Pool, isa: CpuIsa, bytes: usize) -> Result<f64, ProbeError> {
    let bytes = bytes.max(ALIGN).next_multiple_of(ALIGN);
    let mut buffer = HugeBuf::zeroed(bytes)?;
    // Pages that were never written may all be one page of zeros.
    buffer.as_mut_slice::<u8>().fill(1);
    let data = buffer.as_slice::<u8>();
    let sink = AtomicU32::new(0);
    let seconds = median(pool, &|worker: &Worker<'_>| {
        let part = &data[worker.share(bytes, ALIGN)];
        sink.fetch_add(isa.run(Read { data: part }), Ordering::Relaxed);
    })?;
    black_box(sink.into_inner());
    Ok(bytes as f64 / seconds)
}

fn int_peak(pool: &Pool, isa: CpuIsa) -> Result<f64, ProbeError> {
    let sink = AtomicU32::new(0);
    let seconds = median(pool, &|_: &Worker<'_>| {
        sink.fetch_add(isa.run(Dots { steps: STEPS }), Ordering::Relaxed);
    })?;
    black_box(sink.into_inner());
    let dots = (STEPS * CHAINS * pool.threads()) as f64;
    // A lane holds four products and their four additions.
    Ok(dots * (isa.lanes() * 8) as f64 / seconds)
}

/// Seconds of a pass.
fn median(pool: &Pool, job: &(dyn Fn(&Worker<'_>) + Send + Sync)) -> Result<f64, PoolError> {
    let mut passes = vec![];
    let begun = Instant::now();
    while passes.len() < PASSES || begun.elapsed() < SPAN {
        let start = Instant::now();
        pool.run(&|worker: &Worker<'_>| job(worker))?;
        passes.push(start.elapsed().as_secs_f64());
    }
    passes.sort_by(f64::total_cmp);
    Ok(passes[passes.len() / 2])
}

/// What one step of [`Read`] takes: four vectors of the widest instruction set.
const ALIGN: usize = 256;

/// Reads every byte once.
struct Read<'a> {
    data: &'a [u8],
}

impl Kernel for Read<'_> {
    type Out = u32;

    #[inline(always)]
    fn run<S: Isa>(self, isa: S) -> u32 {
        let vector = 4 * S::LANES;
        let mut sums = [isa.splat_i(0); 4];
        for chunk in self.data.chunks_exact(4 * vector) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `chunk` is four vectors long.
                *sum = isa.or_i(*sum, unsafe { isa.load_i(chunk.as_ptr().add(i * vector)) });
            }
        }
        let all = isa.or_i(isa.or_i(sums[0], sums[1]), isa.or_i(sums[2], sums[3]));
        fold(isa, all)
    }
}

/// Integer dots on registers alone.
struct Dots {
    steps: usize,
}

impl Kernel for Dots {
    type Out = u32;

    #[inline(always)]
    fn run<S: Isa>(self, isa: S) -> u32 {
        // The compiler must not know the operands, nor take the products out of the loop: one of them moves, by zero.
        let mut w = isa.splat_i(black_box(0x0101_0101));
        let zero = isa.splat_i(black_box(0));
        let x = isa.splat_i(black_box(0x0100_ff01));
        let mut sums = [isa.dot_zero(); CHAINS];
        for _ in 0..self.steps {
            w = isa.add_i(w, zero);
            for sum in &mut sums {
                *sum = isa.dot(*sum, w, x);
            }
        }
        let mut all = isa.splat_i(0);
        for sum in sums {
            all = isa.or_i(all, isa.dot_sum(sum));
        }
        fold(isa, all)
    }
}

#[inline(always)]
fn fold<S: Isa>(isa: S, v: S::I) -> u32 {
    let mut lanes = [0u32; crate::isa::VIRTUAL_LANES];
    // SAFETY: the array holds as many lanes as the widest instruction set.
    unsafe { isa.store_i(lanes.as_mut_ptr().cast(), v) };
    lanes.iter().fold(0, |a, b| a | b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PoolOptions;

    #[test]
    fn every_byte_is_read() {
        for isa in CpuIsa::available() {
            for place in [0, 63, 64, 255, 256, 1023] {
                let mut data = [0u8; 1024];
                data[place] = 8;
                let expected = 8 << (8 * (place % 4));
                assert_eq!(isa.run(Read { data: &data }), expected, "{isa} {place}");
            }
        }
    }

    #[test]
    fn dots_are_computed() {
        for isa in CpuIsa::available() {
            // Per step and lane: 1*1 + 1*(-1) + 1*0 + 1*1 = 1, in every chain.
            assert_eq!(isa.run(Dots { steps: 5 }), 5, "{isa}");
        }
    }

    #[test]
    fn limits_are_positive_and_finite() {
        let pool = Pool::new(PoolOptions { threads: 1, pin: false }).unwrap();
        let limits = Limits::measure(&pool, CpuIsa::detect(), 1 << 20).unwrap();
        assert!(limits.read_bytes > 1e6 && limits.read_bytes.is_finite(), "{limits:?}");
        assert!(limits.int_ops > 1e6 && limits.int_ops.is_finite(), "{limits:?}");
    }
}
