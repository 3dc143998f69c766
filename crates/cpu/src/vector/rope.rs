//! Rotary position embedding, half-split pairing.

use super::rows::{Rows, RowsMut, Src};
use crate::isa::{CpuIsa, Isa, Kernel};

/// Writes `factor * cos(angle)` and `factor * sin(angle)` of every row and frequency, where the angle is the f32 product
/// `pos * inv_freq`, as in the models' reference code. `cos` and `sin` are `[pos.len(), inv_freq.len()]`.
///
/// The functions are right to half an ulp and a little for angles up to 2^24.
///
/// # Panics
/// When `cos` or `sin` has another length.
pub fn rope_angles(pos: &[u32], inv_freq: &[f32], factor: f32, cos: &mut [f32], sin: &mut [f32]) {
    let len = pos.len() * inv_freq.len();
    assert!(cos.len() == len && sin.len() == len, "one cosine and sine for each row and frequency");
    let mut out = cos.iter_mut().zip(sin);
    for &pos in pos {
        for (&freq, (cos, sin)) in inv_freq.iter().zip(&mut out) {
            let (s, c) = sin_cos(pos as f32 * freq);
            (*cos, *sin) = (c * factor, s * factor);
        }
    }
}

/// Sine and cosine in f64 by reduction to a quarter turn and Taylor's series, with nothing but correctly rounded
/// operations, so that the bits are the same on every machine.
fn sin_cos(angle: f32) -> (f32, f32) {
    // A quarter turn in two parts. The first has 29 bits: its product with the quarters of an angle below 2^24 is exact.
    const QUARTER_HIGH: f64 = f64::from_bits(0x3ff9_21fb_5400_0000);
    const QUARTER_LOW: f64 = 9.920935796805404e-10;
    let angle = f64::from(angle);
    let quarters = (angle * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = (angle - quarters * QUARTER_HIGH) - quarters * QUARTER_LOW;
    let y = r * r;
    // The first terms left out are below 3e-14 and 4e-15 at an eighth of a turn.
    let mut sin = 0.0;
    let mut cos = 0.0;
    for n in [6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        sin = (1.0 + sin) * -y / (2.0 * n * (2.0 * n + 1.0));
    }
    for n in [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0] {
        cos = (1.0 + cos) * -y / (2.0 * n * (2.0 * n - 1.0));
    }
    let (sin, cos) = ((r + r * sin) as f32, (1.0 + cos) as f32);
    match (quarters as i64) & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Rotates each head of each row: of the first `2 * half` values of a head, value `i` pairs with value `i + half`, where
/// `half` is the width of `cos` and `sin`; the other values pass through.
///
/// # Panics
/// When shapes do not fit: `x` is `[rows, heads * head_dim]`, `cos` and `sin` are `[rows, half]`, `2 * half <= head_dim`.
pub fn rope(isa: CpuIsa, x: Src<'_>, head_dim: usize, cos: Rows<'_>, sin: Rows<'_>, out: RowsMut<'_>) {
    x.check(&out);
    assert!(
        head_dim > 0 && out.dim().is_multiple_of(head_dim),
        "a row of {} values is not whole heads of {head_dim}",
        out.dim()
    );
    for table in [&cos, &sin] {
        assert_eq!(
            (table.rows(), table.dim()),
            (out.rows(), cos.dim()),
            "one angle for each row and frequency"
        );
    }
    assert!(2 * cos.dim() <= head_dim, "{} rotary dimensions of a head of {head_dim}", 2 * cos.dim());
    isa.run(Rope { x, head_dim, cos, sin, out });
}

struct Rope<'a> {
    x: Src<'a>,
    head_dim: usize,
    cos: Rows<'a>,
    sin: Rows<'a>,
    out: RowsMut<'a>,
}

impl Kernel for Rope<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        let half = self.cos.dim();
        for index in 0..self.out.rows() {
            let (cos, sin) = (self.cos.row(index).as_ptr(), self.sin.row(index).as_ptr());
            let out = self.out.row(index);
            let x = self.x.row(index);
            let mut head = 0;
            while head < out.len() {
                // SAFETY: shapes were checked on entry, so the head lies within the row of `x` and of `out`, and both of
                // its halves within the head. What is read is not what is written.
                unsafe {
                    let (x, out) = (x.add(head), out.as_mut_ptr().add(head));
                    rotate(s, x, half, cos, sin, out);
                    let rest = self.head_dim - 2 * half;
                    std::ptr::copy_nonoverlapping(x.add(2 * half), out.add(2 * half), rest);
                }
                head += self.head_dim;
            }
        }
    }
}

/// # Safety
/// `x` must be readable and `out` writable for `2 * half` f32, apart from each other; `cos` and `sin` readable for `half`.
#[inline(always)]
unsafe fn rotate<S: Isa>(s: S, x: *const f32, half: usize, cos: *const f32, sin: *const f32, out: *mut f32) {
    let mut i = 0;
    while i < half {
        let len = (half - i).min(S::LANES);
        // SAFETY: `len` values are left at `i` in each half.
        unsafe {
            if len == S::LANES {
                let (a, b) = (s.load(x.add(i)), s.load(x.add(half + i)));
                let (c, d) = (s.load(cos.add(i)), s.load(sin.add(i)));
                s.store(out.add(i), s.fnma(b, d, s.mul(a, c)));
                s.store(out.add(half + i), s.fma(a, d, s.mul(b, c)));
            } else {
                let (a, b) = (s.load_partial(x.add(i), len), s.load_partial(x.add(half + i), len));
                let (c, d) = (s.load_partial(cos.add(i), len), s.load_partial(sin.add(i), len));
                s.store_partial(out.add(i), s.fnma(b, d, s.mul(a, c)), len);
                s.store_partial(out.add(half + i), s.fma(a, d, s.mul(b, c)), len);
            }
        }
        i += len;
    }
}
