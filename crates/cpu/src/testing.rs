//! Random inputs for the tests of this crate.

use tensor::DType;

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

/// Offsets of the f16 fields of a block: the scale, then the minimum or the constant where there is one.
pub(crate) fn half_fields(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        _ => &[],
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
                for &field in half_fields(dtype) {
                    let scale = half::f16::from_f32(random.unit() * 0.1);
                    all[start + field..][..2].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
    }
    all
}
