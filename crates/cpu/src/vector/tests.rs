//! Row kernels against f64 references, and against each other bit by bit on every instruction set.

use super::*;
use crate::isa::{CpuIsa, Isa, Kernel};
use crate::memory::SharedSlice;
use proptest::prelude::*;
use tensor::ops::NO_SNAP;

/// Row lengths around every vector width and stripe.
const LENGTHS: [usize; 14] = [1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 300];

fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| 3.0 * next()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Runs `f` on every instruction set and returns the result, having compared its bits.
fn same_bits(f: impl Fn(CpuIsa) -> Vec<f32>) -> Vec<f32> {
    let all = CpuIsa::available();
    let first = f(all[0]);
    for &isa in &all[1..] {
        assert_eq!(bits(&f(isa)), bits(&first), "{isa} and {} differ", all[0]);
    }
    first
}

#[track_caller]
fn close(got: &[f32], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(g) - w).abs();
        assert!(error <= relative * w.abs() + absolute, "value {i}: {g} instead of {w}, {error:e} apart");
    }
}

/// Distance in units of the last place of the right answer, for normal answers.
fn ulps(got: f32, want: f64) -> f64 {
    let exponent = want.abs().log2().floor().max(-126.0);
    (f64::from(got) - want).abs() / 2f64.powf(exponent - 23.0)
}

struct Exp<'a>(&'a [f32]);

impl Kernel for Exp<'_> {
    type Out = Vec<f32>;
    #[inline(always)]
    fn run<S: Isa>(self, s: S) -> Vec<f32> {
        let mut out = vec![0.0; self.0.len()];
        for (x, y) in self.0.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
            // SAFETY: each chunk has its length in values.
            unsafe {
                s.store_partial(y.as_mut_ptr(), math::exp(s, s.load_partial(x.as_ptr(), x.len())), x.len())
            };
        }
        out
    }
}

#[test]
fn exp_is_within_two_ulp_everywhere() {
    // Every 997th float in the range of normal results, both signs.
    let x: Vec<f32> = (0..u32::MAX).step_by(997).map(f32::from_bits).filter(|x| x.abs() < 90.0).collect();
    assert!(x.len() > 2_000_000);
    let y = same_bits(|isa| isa.run(Exp(&x)));
    for (&x, &y) in x.iter().zip(&y) {
        let want = f64::from(x).exp();
        if want < f64::from(f32::MIN_POSITIVE) {
            assert!(y == 0.0 || y == f32::MIN_POSITIVE, "exp({x}) = {y}");
        } else if want > f64::from(f32::MAX) {
            assert_eq!(y, f32::INFINITY, "exp({x})");
        } else {
            assert!(ulps(y, want) <= 2.0, "exp({x}) = {y}, {} ulp", ulps(y, want));
        }
    }
    let edges = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        88.722_83,
        88.722_84,
        -87.336_54,
        -87.4,
        -1e30,
    ];
    let y = same_bits(|isa| isa.run(Exp(&edges)).iter().map(|y| y + 0.0).collect());
    assert_eq!((y[0], y[1], y[2], y[3]), (1.0, 1.0, f32::INFINITY, 0.0));
    assert!(y[4].is_nan() && y[5].is_finite() && y[7] >= f32::MIN_POSITIVE);
    assert_eq!((y[6], y[8], y[9]), (f32::INFINITY, 0.0, 0.0));
}

/// erfc by its continued fraction or series, in f64.
fn normal_distribution(x: f64) -> f64 {
    let z = x.abs() / 2f64.sqrt();
    let tail = if z < 2.5 {
        let (mut term, mut sum) = (z, z);
        for n in 1..80 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        (1.0 - sum * 2.0 / std::f64::consts::PI.sqrt()) / 2.0
    } else {
        let mut fraction = 0.0;
        for n in (1..200).rev() {
            fraction = f64::from(n) / 2.0 / (z + fraction);
        }
        (-z * z).exp() / (z + fraction) / std::f64::consts::PI.sqrt() / 2.0
    };
    if x < 0.0 { tail } else { 1.0 - tail }
}

fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * u).exp())
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn unary_functions_match_f64() {
    let x: Vec<f32> =
        (-4000..=4000).map(|i| i as f32 * 0.004).chain(noise(1, 4000)).chain([0.0, 1e-8, -1e-8]).collect();
    type Case<'a> = (Unary, &'a dyn Fn(f64) -> f64, f64);
    let cases: [Case<'_>; 5] = [
        (Unary::Scale(0.3), &|x| x * f64::from(0.3f32), 1e-7),
        (Unary::Sigmoid, &|x| 1.0 / (1.0 + (-x).exp()), 4e-7),
        (Unary::Silu, &silu, 4e-7),
        (Unary::GeluTanh, &gelu_tanh, 4e-5),
        (Unary::GeluErf, &|x| x * normal_distribution(x), 1e-6),
    ];
    for (op, f, relative) in cases {
        let got = same_bits(|isa| {
            let mut out = vec![9.0; x.len()];
            unary(isa, op, Rows::new(&x, x.len()).into(), RowsMut::new(&mut out, x.len()));
            out
        });
        let want: Vec<f64> = x.iter().map(|&x| f(f64::from(x))).collect();
        // The f64 references lose the far tails themselves.
        close(&got, &want, relative, 1e-16);
    }
}

#[test]
fn unary_functions_keep_their_limits() {
    let x = [f32::INFINITY, f32::NAN, 200.0, -200.0, -0.0];
    let run = |op| {
        let mut out = [0.0; 5];
        unary(CpuIsa::detect(), op, Rows::new(&x, x.len()).into(), RowsMut::new(&mut out, x.len()));
        assert!(out[1].is_nan(), "{op:?}");
        [out[0], out[2], out[3], out[4]]
    };
    assert_eq!(run(Unary::Silu), [f32::INFINITY, 200.0, 0.0, 0.0]);
    assert_eq!(run(Unary::GeluTanh), [f32::INFINITY, 200.0, 0.0, 0.0]);
    assert_eq!(run(Unary::GeluErf), [f32::INFINITY, 200.0, 0.0, 0.0]);
    assert_eq!(run(Unary::Sigmoid), [1.0, 1.0, 0.0, 0.5]);
}

#[test]
fn binary_functions_match_f64_for_every_length_and_operand() {
    type Case = (Binary, fn(f64, f64) -> f64);
    let cases: [Case; 6] = [
        (Binary::Add, |a, b| a + b),
        (Binary::Mul, |a, b| a * b),
        (Binary::SiluMul, |a, b| silu(a) * b),
        (Binary::GeluTanhMul, |a, b| gelu_tanh(a) * b),
        (Binary::GeluErfMul, |a, b| a * normal_distribution(a) * b),
        (Binary::SigmoidMul, |a, b| b / (1.0 + (-a).exp())),
    ];
    for (op, f) in cases {
        for n in LENGTHS {
            let (a, b, row) = (noise(2, 3 * n), noise(3, 3 * n), noise(4, n));
            let want: Vec<f64> = (0..3 * n).map(|i| f(a[i].into(), b[i].into())).collect();
            let apart = same_bits(|isa| {
                let mut out = vec![0.0; 3 * n];
                binary(isa, op, Rows::new(&a, n).into(), Rows::new(&b, n).into(), RowsMut::new(&mut out, n));
                out
            });
            close(&apart, &want, 1e-5, 1e-6);
            let want: Vec<f64> = (0..3 * n).map(|i| f(a[i].into(), row[i % n].into())).collect();
            let broadcast = same_bits(|isa| {
                let mut out = vec![0.0; 3 * n];
                binary(isa, op, Rows::new(&a, n).into(), Src::Row(&row), RowsMut::new(&mut out, n));
                out
            });
            close(&broadcast, &want, 1e-5, 1e-6);
        }
    }
}

#[test]
fn strided_rows_touch_nothing_else() {
    // Gate and up in one matrix, as a packed projection leaves them.
    let (rows, n) = (5, 19);
    let both = noise(5, rows * 2 * n);
    let matrix = Rows::new(&both, 2 * n);
    let mut out = vec![7.0; rows * 3 * n];
    let target = RowsMut::new(&mut out, 3 * n).columns(n..2 * n);
    let isa = CpuIsa::detect();
    binary(isa, Binary::Mul, matrix.columns(0..n).into(), matrix.columns(n..2 * n).into(), target);
    for r in 0..rows {
        for i in 0..3 * n {
            let want =
                if (n..2 * n).contains(&i) { both[2 * n * r + i - n] * both[2 * n * r + i] } else { 7.0 };
            assert_eq!(out[3 * n * r + i], want);
        }
    }
    // Rows by themselves and rows together are the same rows.
    let mut apart = vec![7.0; rows * n];
    for r in 0..rows {
        let target = RowsMut::new(&mut apart, n).part(r..r + 1);
        let part = matrix.part(r..r + 1);
        binary(isa, Binary::Mul, part.columns(0..n).into(), part.columns(n..2 * n).into(), target);
    }
    for r in 0..rows {
        assert_eq!(apart[n * r..][..n], out[3 * n * r + n..][..n]);
    }
}

fn rms_reference(x: &[f32], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().enumerate().map(|(i, &v)| f64::from(v) * scale * f64::from(weight[i])).collect()
}

#[test]
fn rms_norm_matches_f64_with_eps_inside_the_root() {
    for n in LENGTHS.into_iter().chain([576, 4096]) {
        for (scale, eps) in [(1.0, 1e-5f32), (1e-3, 1e-2), (0.0, 1e-6)] {
            let x: Vec<f32> = noise(6, 3 * n).iter().map(|v| v * scale).collect();
            let weight = noise(7, n);
            let got = same_bits(|isa| {
                let mut out = vec![0.0; 3 * n];
                rms_norm(isa, Rows::new(&x, n).into(), &weight, n, eps, RowsMut::new(&mut out, n));
                // As one row of three pieces, as for heads.
                let mut pieces = vec![0.0; 3 * n];
                let (row, target) = (Rows::new(&x, 3 * n), RowsMut::new(&mut pieces, 3 * n));
                rms_norm(isa, row.into(), &weight, n, eps, target);
                assert_eq!(bits(&pieces), bits(&out));
                out
            });
            let want: Vec<f64> = x.chunks(n).flat_map(|x| rms_reference(x, &weight, eps.into())).collect();
            close(&got, &want, 1e-6, 1e-9);
        }
    }
}

#[test]
fn the_fused_sum_and_norm_is_the_two_steps() {
    for n in LENGTHS {
        let (a, b, weight) = (noise(8, 2 * n), noise(9, 2 * n), noise(10, n));
        same_bits(|isa| {
            let (mut sum, mut out) = (vec![0.0; 2 * n], vec![0.0; 2 * n]);
            binary(
                isa,
                Binary::Add,
                Rows::new(&a, n).into(),
                Rows::new(&b, n).into(),
                RowsMut::new(&mut sum, n),
            );
            rms_norm(isa, Rows::new(&sum, n).into(), &weight, n, 1e-5, RowsMut::new(&mut out, n));
            let (mut fused_sum, mut fused) = (vec![0.0; 2 * n], vec![0.0; 2 * n]);
            let (s, o) = (RowsMut::new(&mut fused_sum, n), RowsMut::new(&mut fused, n));
            add_rms_norm(isa, Rows::new(&a, n).into(), Rows::new(&b, n).into(), &weight, 1e-5, s, o);
            assert_eq!((bits(&fused_sum), bits(&fused)), (bits(&sum), bits(&out)));
            fused
        });
    }
}

#[test]
fn softmax_matches_f64() {
    for n in LENGTHS {
        for (scale, offset) in [(1.0, 0.0), (30.0, 1000.0), (0.0, -5.0)] {
            let x: Vec<f32> = noise(11, 2 * n).iter().map(|v| v * scale + offset).collect();
            let got = same_bits(|isa| {
                let mut out = vec![0.0; 2 * n];
                softmax(isa, Rows::new(&x, n).into(), RowsMut::new(&mut out, n));
                out
            });
            let want: Vec<f64> = x
                .chunks(n)
                .flat_map(|x| {
                    let max = x.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v.into()));
                    let e: Vec<f64> = x.iter().map(|&v| (f64::from(v) - max).exp()).collect();
                    let sum: f64 = e.iter().sum();
                    e.into_iter().map(move |e| e / sum)
                })
                .collect();
            close(&got, &want, 1e-6, 1e-37);
        }
    }
    // Minus infinity is a mask; a NaN reaches every value.
    let softmax_of = |x: &[f32]| {
        let mut out = vec![0.0; x.len()];
        softmax(CpuIsa::detect(), Rows::new(x, x.len()).into(), RowsMut::new(&mut out, x.len()));
        out
    };
    assert_eq!(softmax_of(&[1.0, f32::NEG_INFINITY, 1.0]), [0.5, 0.0, 0.5]);
    for at in [0, 5, 16, 18] {
        let mut x = noise(12, 19);
        x[at] = f32::NAN;
        assert!(softmax_of(&x).iter().all(|v| v.is_nan()));
    }
}

#[test]
fn rope_matches_f64_and_passes_the_rest_through() {
    for (head_dim, half, heads) in [(8, 4, 1), (64, 32, 3), (64, 16, 2), (10, 3, 2), (128, 64, 2), (16, 0, 1)]
    {
        let pos = [0u32, 1, 77, 4095, 131_071];
        let inv_freq: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
        let (mut cos, mut sin) = (vec![0.0; pos.len() * half], vec![0.0; pos.len() * half]);
        rope_angles(&pos, &inv_freq, 1.5, &mut cos, &mut sin);
        for (i, (&c, &s)) in cos.iter().zip(&sin).enumerate() {
            let angle = f64::from(pos[i / half] as f32 * inv_freq[i % half]);
            assert!((f64::from(c) - 1.5 * angle.cos()).abs() < 1.3e-7, "cos {angle}");
            assert!((f64::from(s) - 1.5 * angle.sin()).abs() < 1.3e-7, "sin {angle}");
        }
        let width = heads * head_dim;
        let x = noise(13, pos.len() * width);
        let got = same_bits(|isa| {
            let table = |t| if half == 0 { Rows::strided(t, pos.len(), 0, 0) } else { Rows::new(t, half) };
            let mut out = vec![0.0; x.len()];
            rope(
                isa,
                Rows::new(&x, width).into(),
                head_dim,
                table(&cos),
                table(&sin),
                RowsMut::new(&mut out, width),
            );
            out
        });
        let want: Vec<f64> = (0..x.len())
            .map(|i| {
                let (row, d, head) = (i / width, i % head_dim, i - i % head_dim);
                let v = |d: usize| f64::from(x[head + d]);
                if d >= 2 * half {
                    return v(d);
                }
                let angle = f64::from(pos[row] as f32 * inv_freq[d % half]);
                let (s, c) = (1.5 * angle.sin(), 1.5 * angle.cos());
                if d < half { v(d) * c - v(d + half) * s } else { v(d) * c + v(d - half) * s }
            })
            .collect();
        close(&got, &want, 0.0, 2e-6);
    }
}

#[test]
fn argmax_and_top_k_take_the_lowest_index_and_refuse_nan() {
    for isa in CpuIsa::available() {
        for n in LENGTHS {
            let mut x = noise(14, n);
            let best = n / 2;
            x[best] = 50.0;
            x[n - 1] = 50.0;
            assert_eq!(argmax(isa, &x), Ok(best as u32));
            for at in [0, n / 3, n - 1] {
                let mut x = x.clone();
                x[at] = -f32::NAN;
                assert_eq!(argmax(isa, &x), Err(SelectError::Nan { index: at, len: n }));
            }
        }
        assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 20]), Ok(0));
        assert_eq!(argmax(isa, &[-0.0, 0.0]), Ok(0));
        assert_eq!(argmax(isa, &[1.0, f32::INFINITY, f32::INFINITY]), Ok(1));
        assert_eq!(argmax(isa, &[]), Err(SelectError::TooFew { wanted: 1, len: 0 }));
    }
    let mut scratch = Vec::new();
    let mut top = |x: &[f32], k| {
        let (mut values, mut indices) = (vec![0.0; k], vec![0; k]);
        top_k(x, &mut scratch, &mut values, &mut indices).map(|()| (values, indices))
    };
    assert_eq!(top(&[1.0, 3.0, -0.0, 3.0, 0.0], 4), Ok((vec![3.0, 3.0, 1.0, -0.0], vec![1, 3, 0, 2])));
    assert_eq!(top(&[1.0], 0), Ok((vec![], vec![])));
    assert_eq!(top(&[1.0], 2), Err(SelectError::TooFew { wanted: 2, len: 1 }));
    assert_eq!(top(&[1.0, f32::NAN], 1), Err(SelectError::Nan { index: 1, len: 2 }));
}

proptest! {
    #[test]
    fn top_k_is_the_head_of_the_sorted_row(x in prop::collection::vec(-3i8..3, 1..200), k in 0usize..200) {
        let x: Vec<f32> = x.into_iter().map(f32::from).collect();
        let k = k.min(x.len());
        let mut order: Vec<u32> = (0..x.len() as u32).collect();
        order.sort_by(|&a, &b| x[b as usize].total_cmp(&x[a as usize]));
        let (mut values, mut indices) = (vec![0.0; k], vec![0; k]);
        top_k(&x, &mut Vec::new(), &mut values, &mut indices).unwrap();
        prop_assert_eq!(&indices[..], &order[..k]);
        prop_assert!(values.iter().zip(&indices).all(|(&v, &i)| v == x[i as usize]));
    }
}

/// A whole sequence from zeros, in f64.
fn conv_reference(x: &[f32], weight: &[f32], channels: usize, taps: usize) -> Vec<f64> {
    let rows = x.len() / channels;
    let mut out = vec![0.0; rows * channels];
    for t in 0..rows {
        for c in 0..channels {
            let mut sum = 0.0;
            for j in 0..taps {
                if let Some(past) = (t + j).checked_sub(taps - 1) {
                    sum += f64::from(weight[c * taps + j]) * f64::from(x[past * channels + c]);
                }
            }
            out[t * channels + c] = sum;
        }
    }
    out
}

#[test]
fn short_conv_is_the_same_whole_chunked_and_among_others() {
    for (channels, taps) in [(5, 3), (64, 3), (100, 4), (130, 1), (16, 2)] {
        let weight = noise(20, channels * taps);
        let inputs: Vec<Vec<f32>> =
            (0..3).map(|s| noise(30 + s, [23, 1, 9][s as usize] * channels)).collect();
        let rows: Vec<usize> = inputs.iter().map(|x| x.len() / channels).collect();
        let want: Vec<Vec<f64>> = inputs.iter().map(|x| conv_reference(x, &weight, channels, taps)).collect();
        let run = |isa, chunk: usize, split: usize| {
            // Slots hold rubbish before they are written, and one more row than is used is padding.
            let mut state = vec![f32::NAN; 4 * (taps - 1) * channels];
            let mut results = vec![Vec::new(); 3];
            let mut done = [0; 3];
            while done.iter().zip(&rows).any(|(d, n)| d < n) {
                let extents: Vec<u32> = (0..3).map(|i| chunk.min(rows[i] - done[i]) as u32).collect();
                let (mut x, mut pos, mut snap) = (Vec::new(), Vec::new(), Vec::new());
                for i in 0..3 {
                    let n = extents[i] as usize;
                    x.extend_from_slice(&inputs[i][done[i] * channels..][..n * channels]);
                    pos.extend((done[i]..done[i] + n).map(|p| p as u32));
                    snap.extend((0..n).map(|r| if r + 1 == n { 3 - i as u32 } else { NO_SNAP }));
                }
                let used = pos.len();
                x.extend(vec![1.0; channels]);
                let mut out = vec![5.0; (used + 1) * channels];
                let conv = ShortConv {
                    x: Rows::new(&x, channels),
                    weight: &weight,
                    taps,
                    segments: Segments { extents: &extents, slots: &[3, 2, 1], pos: &pos, snap: &snap },
                };
                let shared = SharedSlice::new(&mut state);
                for part in [0..split, split..channels] {
                    let rows = RowsMut::new(&mut out, channels);
                    // SAFETY: one thread; sequences have slots of their own.
                    unsafe { short_conv(isa, conv, shared, part, rows) };
                }
                assert!(out[used * channels..].iter().all(|&v| v == 0.0));
                let mut at = 0;
                for i in 0..3 {
                    let n = extents[i] as usize;
                    results[i].extend_from_slice(&out[at * channels..][..n * channels]);
                    at += n;
                    done[i] += n;
                }
            }
            results.concat()
        };
        let whole = same_bits(|isa| run(isa, 100, channels / 2));
        close(&whole, &want.concat(), 1e-5, 1e-5);
        for (chunk, split) in [(1, 0), (2, channels), (7, 3)] {
            assert_eq!(bits(&run(CpuIsa::detect(), chunk, split)), bits(&whole), "chunks of {chunk}");
        }
    }
}

#[test]
fn short_conv_stores_the_state_after_any_row() {
    let (channels, taps) = (3, 3);
    let x = noise(40, 5 * channels);
    let weight = noise(41, channels * taps);
    let mut state = vec![0.0; 5 * (taps - 1) * channels];
    let mut out = vec![0.0; 5 * channels];
    let conv = ShortConv {
        x: Rows::new(&x, channels),
        weight: &weight,
        taps,
        segments: Segments {
            extents: &[5],
            slots: &[0],
            pos: &[0, 1, 2, 3, 4],
            snap: &[4, NO_SNAP, 2, NO_SNAP, 1],
        },
    };
    // SAFETY: one thread, one sequence.
    unsafe {
        let state = SharedSlice::new(&mut state);
        short_conv(CpuIsa::detect(), conv, state, 0..channels, RowsMut::new(&mut out, channels));
    }
    let at = |t: usize, c: usize| x[t * channels + c];
    for c in 0..channels {
        let slot = |slot: usize| [state[slot * 6 + c], state[slot * 6 + 3 + c]];
        assert_eq!(slot(4), [0.0, at(0, c)]);
        assert_eq!(slot(2), [at(1, c), at(2, c)]);
        assert_eq!(slot(1), [at(3, c), at(4, c)]);
        assert_eq!((slot(0), slot(3)), ([0.0; 2], [0.0; 2]));
    }
}

#[test]
#[should_panic(expected = "operand and output differ in shape")]
fn shapes_that_do_not_fit_are_refused() {
    let x = [0.0; 4];
    let mut out = [0.0; 6];
    unary(CpuIsa::detect(), Unary::Silu, Rows::new(&x, 2).into(), RowsMut::new(&mut out, 2));
}
