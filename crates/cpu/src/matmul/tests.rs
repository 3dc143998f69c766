//! Products against a scalar model of their definition, bit by bit, and against f64 within derived bounds.

use super::*;
use crate::isa::CpuIsa;
use crate::quant::quantise_row;
use crate::testing::{Random, stored_rows};
use bytemuck::Zeroable;
use tensor::blocks::{Role, decode, fields};

/// A matrix in stored form.
struct Stored {
    dtype: DType,
    n: usize,
    k: usize,
    bytes: Vec<u8>,
}

impl Stored {
    fn random(dtype: DType, n: usize, k: usize, random: &mut Random) -> Stored {
        Stored { dtype, n, k, bytes: stored_rows(dtype, n, k, random) }
    }

    fn row(&self, row: usize) -> &[u8] {
        let bytes = self.dtype.bytes_for(self.k).unwrap();
        &self.bytes[row * bytes..][..bytes]
    }

    fn pack(&self, isa: CpuIsa) -> PackedMatrix {
        PackedMatrix::pack(isa, self.dtype, self.n, self.k, |row| self.row(row)).unwrap()
    }

    /// A row decoded.
    fn weights(&self, row: usize) -> Vec<f32> {
        let mut out = vec![0f32; self.k];
        decode(self.dtype, self.row(row), &mut out).unwrap();
        out
    }

    /// A row decoded with other real numbers in its blocks: with scales of 1 and others of 0 its integers, with 0 and 1 its
    /// minima or ones.
    fn weights_with(&self, row: usize, scale: f32, other: f32) -> Vec<f32> {
        let mut bytes = self.row(row).to_vec();
        for block in bytes.chunks_mut(self.dtype.block_bytes()) {
            for field in fields(self.dtype) {
                field.put(block, if field.role == Role::Scale { scale } else { other });
            }
        }
        let mut out = vec![0f32; self.k];
        decode(self.dtype, &bytes, &mut out).unwrap();
        out
    }

    /// The real number `i` of the block that holds element `at` of a row, or 0.
    fn field(&self, row: usize, at: usize, i: usize) -> f32 {
        let block = &self.row(row)[at / self.dtype.block_len() * self.dtype.block_bytes()..];
        fields(self.dtype).get(i).map_or(0.0, |field| field.get(block))
    }

    /// The definition of the `fast` product, in scalars.
    fn fast(&self, row: usize, x: &[ActBlock]) -> f32 {
        // What the format's scale has in it besides the stored one.
        let power = match self.dtype {
            DType::IQ3_XXS => 0.25,
            DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => 0.125,
            _ => 1.0,
        };
        let integers: Vec<f32> = self.weights_with(row, 1.0, 0.0).iter().map(|w| w / power).collect();
        let constants = self.weights_with(row, 0.0, 1.0);
        let dot = |w: &[f32], x: &[i8]| -> f32 {
            w.iter().zip(x).map(|(&w, &x)| w as i32 * i32::from(x)).sum::<i32>() as f32
        };
        let sum = |b: usize| dot(&integers[32 * b..], &x[b].codes);
        let mut acc = 0f32;
        match self.dtype {
            DType::NVFP4 => {
                for (i, x) in x.iter().enumerate() {
                    for h in 0..2 {
                        let at = 32 * i + 16 * h;
                        let d = self.field(row, at, at / 16 % 4);
                        acc = dot(&integers[at..], &x.codes[16 * h..][..16]).mul_add(d * x.scale, acc);
                    }
                }
            }
            dtype
                if dtype.block_len() == 256
                    && !matches!(dtype, DType::Q8_K | DType::TQ1_0 | DType::TQ2_0) =>
            {
                for first in (0..x.len()).step_by(8) {
                    let (mut a, mut b) = (0f32, 0f32);
                    for i in first..first + 8 {
                        a = sum(i).mul_add(x[i].scale, a);
                        b = match dtype {
                            DType::Q2_K => (-dot(&constants[32 * i..], &x[i].codes)).mul_add(x[i].scale, b),
                            _ => (-constants[32 * i]).mul_add(x[i].sum, b),
                        };
                    }
                    acc = (power * self.field(row, 32 * first, 0)).mul_add(a, acc);
                    if matches!(dtype, DType::Q2_K | DType::Q4_K | DType::Q5_K) {
                        acc = (-self.field(row, 32 * first, 1)).mul_add(b, acc);
                    }
                }
            }
            dtype => {
                for (i, x) in x.iter().enumerate() {
                    acc = sum(i).mul_add(self.field(row, 32 * i, 0) * x.scale, acc);
                    if matches!(dtype, DType::Q4_1 | DType::Q5_1) {
                        acc = self.field(row, 32 * i, 1).mul_add(x.sum, acc);
                    }
                }
            }
        }
        acc
    }

    /// The definition of the `exact` product, in scalars.
    fn exact(&self, row: usize, x: &[f32]) -> f32 {
        self.weights(row).iter().zip(x).fold(0.0, |acc, (w, x)| w.mul_add(*x, acc))
    }
}

fn quantise(isa: CpuIsa, x: &[f32]) -> Vec<ActBlock> {
    let mut out = vec![ActBlock::zeroed(); x.len() / BLOCK];
    quantise_row(isa, x, &mut out);
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn product(w: &PackedMatrix, x: Activations<'_>, m: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * w.n()];
    matmul(w, x, RowMap::first(m), bias, &mut out);
    out
}

/// Inner dimensions to try: one block, and several.
fn inner(dtype: DType) -> [usize; 2] {
    match dtype.block_len() {
        1 => [5, 67],
        32 => [32, 160],
        len => [len, 3 * len],
    }
}

#[test]
fn products_are_the_defined_ones_bit_by_bit() {
    let mut random = Random(1);
    for dtype in DType::WEIGHTS {
        for k in inner(dtype) {
            for n in [1, 8, 29, 50] {
                let stored = Stored::random(dtype, n, k, &mut random);
                let bias = random.floats(n);
                for m in [0, 1, 2, 3, 5, 17] {
                    let x = random.floats(m * k);
                    let exact: Vec<f32> = x
                        .chunks(k)
                        .flat_map(|x| (0..n).map(|row| stored.exact(row, x) + bias[row]).collect::<Vec<_>>())
                        .collect();
                    let blocks =
                        if dtype.is_quantised() { quantise(CpuIsa::detect(), &x) } else { Vec::new() };
                    let fast: Vec<f32> = blocks
                        .chunks(k.div_ceil(BLOCK))
                        .flat_map(|x| (0..n).map(|row| stored.fast(row, x)).collect::<Vec<_>>())
                        .collect();
                    for isa in CpuIsa::available() {
                        let w = stored.pack(isa);
                        let got = product(&w, Activations::F32 { data: &x, stride: k }, m, Some(&bias));
                        assert_eq!(bits(&got), bits(&exact), "exact {dtype} {isa} {m} x {k} x {n}");
                        if dtype.is_quantised() {
                            let got = product(&w, Activations::Quantised(&blocks), m, None);
                            assert_eq!(bits(&got), bits(&fast), "fast {dtype} {isa} {m} x {k} x {n}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_are_near_the_real_ones() {
    let mut random = Random(2);
    for dtype in DType::WEIGHTS {
        let (n, k, m) = (19, 1024, 4);
        let stored = Stored::random(dtype, n, k, &mut random);
        let x = random.floats(m * k);
        let blocks = quantise(CpuIsa::detect(), &x);
        let isa = CpuIsa::detect();
        let w = stored.pack(isa);
        let exact = product(&w, Activations::F32 { data: &x, stride: k }, m, None);
        let fast = dtype.is_quantised().then(|| product(&w, Activations::Quantised(&blocks), m, None));
        for row in 0..n {
            let weights = stored.weights(row);
            let constants = stored.weights_with(row, 0.0, stored_max(&stored, row));
            for t in 0..m {
                let x = &x[t * k..][..k];
                let pairs = || weights.iter().zip(x).map(|(&w, &x)| (f64::from(w), f64::from(x)));
                let real: f64 = pairs().map(|(w, x)| w * x).sum();
                let size: f64 = pairs().map(|(w, x)| (w * x).abs()).sum();
                // k roundings, each of at most half a unit in the last place of a partial sum.
                let bound = k as f64 * f64::from(f32::EPSILON / 2.0) * size;
                let error = (f64::from(exact[t * n + row]) - real).abs();
                assert!(error <= bound, "exact {dtype}: {error} > {bound}");
                let Some(fast) = &fast else { continue };
                // A code is off by half a step; sums of the parts code and constant round like `exact`, but their terms do
                // not cancel before they are rounded.
                let mut bound = 0f64;
                for (b, block) in blocks[t * k / BLOCK..][..k / BLOCK].iter().enumerate() {
                    for i in 32 * b..32 * b + 32 {
                        let w = f64::from(weights[i].abs());
                        let parts = w + 2.0 * f64::from(constants[i].abs());
                        let rounding = k as f64 * f64::from(f32::EPSILON);
                        bound += f64::from(block.scale) * (0.50001 * w + rounding * parts * 127.0);
                    }
                }
                let error = (f64::from(fast[t * n + row]) - real).abs();
                assert!(error <= bound, "fast {dtype}: {error} > {bound}");
                assert!(bound < 0.05 * size, "the bound says nothing: {bound} of {size}");
            }
        }
    }
}

/// The largest magnitude of a minimum or constant of a row.
fn stored_max(stored: &Stored, row: usize) -> f32 {
    (0..stored.k).step_by(stored.dtype.block_len()).fold(0.0, |a, at| match fields(stored.dtype).get(1) {
        Some(field) if field.role != Role::Scale => a.max(stored.field(row, at, 1).abs()),
        _ => a,
    })
}

#[test]
fn the_extremes_of_codes_do_not_overflow() {
    for dtype in DType::WEIGHTS.into_iter().filter(|dtype| dtype.is_quantised()) {
        let k = 2 * dtype.block_len();
        for fill in [0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f] {
            let mut stored = Stored { dtype, n: 17, k, bytes: vec![fill; 17 * dtype.bytes_for(k).unwrap()] };
            for block in stored.bytes.chunks_mut(dtype.block_bytes()) {
                fields(dtype).iter().for_each(|field| field.put(block, 1.0));
            }
            let signs: [fn(usize) -> f32; 4] = [
                |_| 1.0,
                |_| -1.0,
                |i| if i % 4 < 2 { 1.0 } else { -1.0 },
                |i| if i % 2 == 0 { 1.0 } else { -1.0 },
            ];
            for sign in signs {
                let x: Vec<f32> = (0..k).map(sign).collect();
                let blocks = quantise(CpuIsa::detect(), &x);
                for isa in CpuIsa::available() {
                    let got = product(&stored.pack(isa), Activations::Quantised(&blocks), 1, None);
                    let want: Vec<f32> = (0..17).map(|row| stored.fast(row, &blocks)).collect();
                    assert_eq!(bits(&got), bits(&want), "{dtype} {isa} filled with {fill:x}");
                }
            }
        }
    }
}

#[test]
fn neither_the_split_nor_the_company_changes_a_bit() {
    let mut random = Random(3);
    for dtype in DType::WEIGHTS {
        let (n, k, m) = (77, inner(dtype)[1], 9);
        let stored = Stored::random(dtype, n, k, &mut random);
        let x = random.floats(m * k);
        for isa in CpuIsa::available() {
            let w = stored.pack(isa);
            let blocks = if dtype.is_quantised() { quantise(isa, &x) } else { Vec::new() };
            let mut forms = vec![Activations::F32 { data: &x, stride: k }];
            if dtype.is_quantised() {
                forms.push(Activations::Quantised(&blocks));
            }
            for x in forms {
                let want = product(&w, x, m, None);
                for cuts in [vec![1], vec![2, 3], (1..w.groups()).collect()] {
                    let mut out = vec![f32::NAN; m * n];
                    let shared = Output { data: SharedSlice::new(&mut out), stride: n, from: 0 };
                    let ends: Vec<usize> = cuts.iter().copied().chain([w.groups()]).collect();
                    std::thread::scope(|scope| {
                        let mut start = 0;
                        for &end in &ends {
                            let (w, range) = (&w, start..end);
                            // SAFETY: the ranges are disjoint.
                            scope.spawn(move || unsafe {
                                matmul_groups(w, range, x, RowMap::first(m), None, shared);
                            });
                            start = end;
                        }
                    });
                    assert_eq!(bits(&out), bits(&want), "{dtype} {isa} cut at {cuts:?}");
                }
                for t in 0..m {
                    let mut alone = vec![f32::NAN; n];
                    let rows = RowMap { count: 1, input: Some(&[t as u32]), output: None };
                    matmul(&w, x, rows, None, &mut alone);
                    assert_eq!(bits(&alone), bits(&want[t * n..][..n]), "{dtype} {isa} row {t} alone");
                }
            }
        }
    }
}

#[test]
fn rows_go_where_the_lists_say_and_nothing_else_is_touched() {
    let mut random = Random(4);
    let (n, k) = (21, 64);
    let stored = Stored::random(DType::Q8_0, n, k, &mut random);
    let (padded, stride) = (random.floats(6 * 80), 80);
    for isa in CpuIsa::available() {
        let w = stored.pack(isa);
        let mut out = vec![-7f32; 5 * 40];
        let rows = RowMap { count: 3, input: Some(&[5, 0, 5]), output: Some(&[4, 1, 0]) };
        let x = Activations::F32 { data: &padded, stride };
        let shared = Output { data: SharedSlice::new(&mut out), stride: 40, from: 0 };
        // SAFETY: nobody else uses the output.
        unsafe { matmul_groups(&w, 0..w.groups(), x, rows, None, shared) };
        for (row, out) in out.chunks(40).enumerate() {
            let source = [Some(5), Some(0), None, None, Some(5)][row];
            for (i, &got) in out.iter().enumerate() {
                let want = match source {
                    Some(source) if i < n => stored.exact(i, &padded[source * stride..][..k]),
                    _ => -7.0,
                };
                assert_eq!(got.to_bits(), want.to_bits(), "{isa} row {row} column {i}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_reaches_the_output() {
    let mut random = Random(5);
    for dtype in DType::WEIGHTS.into_iter().filter(|dtype| dtype.is_quantised()) {
        let k = 2 * dtype.block_len();
        let mut x = random.floats(k);
        x[k - 3] = f32::INFINITY;
        for isa in CpuIsa::available() {
            let w = Stored::random(dtype, 9, k, &mut random).pack(isa);
            let out = product(&w, Activations::Quantised(&quantise(isa, &x)), 1, None);
            assert!(out.iter().all(|y| y.is_nan()), "{dtype} {isa}");
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let w = Stored::random(DType::Q4_0, 10, 64, &mut Random(6)).pack(CpuIsa::detect());
    let x = vec![1f32; 128];
    let refused = |rows: RowMap<'_>, stride: usize, len: usize, width: usize, out: usize| {
        let x = Activations::F32 { data: &x[..len], stride };
        let mut out = vec![0f32; out];
        let run = std::panic::AssertUnwindSafe(|| {
            let out = Output { data: SharedSlice::new(&mut out), stride: width, from: 0 };
            // SAFETY: nobody else uses the output.
            unsafe { matmul_groups(&w, 0..w.groups(), x, rows, None, out) };
        });
        std::panic::catch_unwind(run).is_err()
    };
    assert!(!refused(RowMap::first(2), 64, 128, 12, 22));
    assert!(refused(RowMap::first(3), 64, 128, 12, 36), "more rows than activations");
    assert!(refused(RowMap::first(2), 64, 127, 12, 22), "the last row is short");
    assert!(refused(RowMap::first(2), 63, 128, 12, 22), "rows overlap");
    assert!(refused(RowMap::first(2), 64, 128, 12, 21), "the output is short");
    assert!(refused(RowMap::first(2), 64, 128, 9, 22), "an output row is short");
    let rows = RowMap { count: 1, input: Some(&[2]), output: None };
    assert!(refused(rows, 64, 128, 12, 12), "no such row of activations");
    let rows = RowMap { count: 1, input: None, output: Some(&[1]) };
    assert!(refused(rows, 64, 128, 12, 12), "no such row of the output");
    let rows = RowMap { count: 2, input: Some(&[0]), output: None };
    assert!(refused(rows, 64, 128, 12, 24), "a list of another length");
}
