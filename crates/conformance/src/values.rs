//! Seeded operand values.

use std::collections::BTreeMap;

use graph::backend::WeightDesc;
use graph::{Graph, Stream};
use tensor::blocks::{Role, fields};
use tensor::{DType, HostTensor};

/// A sequence of random numbers, the same on every machine.
pub struct Values {
    stream: Stream,
    next: u64,
}

impl Values {
    /// The numbers of a name.
    pub fn new(name: &str) -> Values {
        // FNV-1a: the seed only has to differ between names.
        let seed = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Values { stream: Stream::new(seed), next: 0 }
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        self.next += 1;
        self.stream.draw(self.next - 1)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((f64::from(self.uniform()) * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// About normal: the sum of four uniform numbers, scaled to deviation 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| self.uniform()).sum();
        (sum - 2.0) * 3f32.sqrt()
    }

    /// An F32 tensor of normal numbers.
    pub fn floats(&mut self, dims: &[usize], scale: f32) -> HostTensor {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| scale * self.normal()).collect();
        HostTensor::from_f32(dims, &values).expect("as many values as elements")
    }

    /// Rows of activations with the edges that occur: a row of zeros of both signs, one of subnormals, one with an
    /// outlier in a channel, one of a single value, and large and small rows; the others normal. With fewer than eight
    /// rows only the last ones are normal.
    pub fn rows(&mut self, dims: &[usize]) -> HostTensor {
        let mut x = self.floats(dims, 1.0);
        let width = dims[1..].iter().product::<usize>();
        let rows = dims[0];
        let values = x.f32s_mut().expect("an F32 tensor");
        for (r, row) in values.chunks_mut(width.max(1)).enumerate().take(rows.saturating_sub(2)) {
            let last = row.len() - 1;
            match r {
                0 => row.iter_mut().enumerate().for_each(|(i, x)| *x = if i % 2 == 0 { 0.0 } else { -0.0 }),
                1 => row[last / 2] = -3000.0,
                2 => row.iter_mut().for_each(|x| *x *= 1e-40),
                3 => row.iter_mut().for_each(|x| *x *= 1e8),
                4 => row[..last].fill(0.0),
                5 => row.iter_mut().for_each(|x| *x *= 1e-8),
                _ => break,
            }
        }
        x
    }

    /// A U32 tensor.
    pub fn ids(&mut self, dims: &[usize], below: usize) -> HostTensor {
        let values: Vec<u32> = (0..dims.iter().product()).map(|_| self.below(below) as u32).collect();
        HostTensor::from_u32(dims, &values).expect("as many values as elements")
    }

    /// [`Values::weights`] for all weights of a graph, by name.
    pub fn weights_of(&mut self, graph: &Graph) -> BTreeMap<String, HostTensor> {
        let of = |desc: WeightDesc| {
            let tensor = self.weights(desc.dtype, desc.shape.dims());
            (desc.name, tensor)
        };
        graph.weights().into_iter().map(of).collect()
    }

    /// Weights of any float or block type, of deviation about `k^-0.5`. Blocks have random codes and sub-scales; among
    /// them are some whose scale (or minimum) is zero, subnormal or negative.
    pub fn weights(&mut self, dtype: DType, dims: &[usize]) -> HostTensor {
        let k = *dims.last().expect("weights have rows");
        let scale = (k.max(1) as f32).powf(-0.5);
        if !dtype.is_quantised() {
            let values = self.floats(dims, scale);
            let bytes: Vec<u8> = match dtype {
                DType::F32 => return values,
                DType::F16 => each(&values, |x| half::f16::from_f32(x).to_le_bytes()),
                _ => each(&values, |x| half::bf16::from_f32(x).to_le_bytes()),
            };
            return HostTensor::new(dtype, dims, &bytes).expect("as many values as elements");
        }
        let elements: usize = dims.iter().product();
        let mut bytes = vec![0u8; elements / dtype.block_len() * dtype.block_bytes()];
        // The size of a block's scales for weights of deviation about 1, and of the minimum or constant beside them.
        let (unit, minimum) = match dtype {
            DType::Q4_0 => (0.2, 0.0),
            DType::Q4_1 => (0.2, -1.5),
            DType::Q5_0 => (0.1, 0.0),
            DType::Q5_1 => (0.1, -1.5),
            DType::Q8_0 | DType::Q8_1 | DType::Q8_K | DType::IQ4_NL => (0.014, 0.0),
            DType::Q2_K => (0.06, 0.1),
            DType::Q3_K => (0.023, 0.0),
            DType::Q4_K => (0.006, 0.05),
            DType::Q5_K => (0.003, 0.05),
            DType::IQ4_XS => (0.0008, 0.0),
            DType::IQ3_XXS | DType::IQ3_S => (0.006, 0.0),
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => (0.016, 0.0),
            DType::IQ1_S | DType::IQ1_M => (0.14, 0.0),
            DType::MXFP4 | DType::NVFP4 => (0.18, 0.0),
            DType::Q1_0 | DType::TQ1_0 | DType::TQ2_0 => (1.0, 0.0),
            _ => (0.0007, 0.0),
        };
        for (i, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
            block.iter_mut().for_each(|b| *b = self.below(256) as u8);
            let edge = |x: f32| match i % 23 {
                7 => 0.0,
                11 => 1e-7,
                13 => -x,
                _ => x,
            };
            for field in fields(dtype) {
                let spread = 0.5 + self.uniform();
                match field.role {
                    Role::Scale => field.put(block, edge(spread * unit * scale)),
                    Role::Constant | Role::Minimum => {
                        field.put(block, spread * minimum * scale * if i % 23 == 17 { 0.0 } else { 1.0 });
                    }
                    Role::Sum => {}
                }
            }
        }
        HostTensor::new(dtype, dims, &bytes).expect("whole blocks")
    }
}

fn each<const N: usize>(values: &HostTensor, f: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.f32s().expect("an F32 tensor").iter().flat_map(|x| f(*x)).collect()
}
