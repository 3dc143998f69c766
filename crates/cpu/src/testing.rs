//! Random inputs for the tests of this crate.

use tensor::DType;
use tensor::blocks::fields;

/// A linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// From -1 to 1.
    pub(crate) fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 31) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Rows of random weights in stored form: every bit pattern of codes and sub-scales, scales of either sign.
pub(crate) fn stored_rows(dtype: DType, n: usize, k: usize, random: &mut Random) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..n * k / dtype.block_len() {
        let value = random.unit();
        match dtype {
            DType::F32 => all.extend(value.to_le_bytes()),
            DType::F16 => all.extend(half::f16::from_f32(value).to_le_bytes()),
            DType::BF16 => all.extend(half::bf16::from_f32(value).to_le_bytes()),
            _ => {
                let start = all.len();
                all.extend((0..dtype.block_bytes()).map(|_| random.bits() as u8));
                for field in fields(dtype) {
                    field.put(&mut all[start..], random.unit() * 0.1);
                }
            }
        }
    }
    all
}
