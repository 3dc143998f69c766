//! Root-mean-square norm.

use super::lanes::V;
use super::rows::{RowsMut, Src};
use crate::isa::{CpuIsa, Isa, Kernel, VIRTUAL_LANES};

/// `x / sqrt(mean(x^2) + eps) * weight` over each piece of `width` values of each row: a whole row, or one head.
///
/// The squares are summed in 64 f32 lanes (value `i` in lane `i mod 64`), then by a fixed tree; the mean and the root
/// are f64.
///
/// # Panics
/// When `x` and `out` differ in shape, a row is not whole pieces, or `weight` does not have `width` values.
pub fn rms_norm(isa: CpuIsa, x: Src<'_>, weight: &[f32], width: usize, eps: f32, out: RowsMut<'_>) {
    x.check(&out);
    check(weight, width, &out);
    isa.run(RmsNorm { x, weight, width, eps, out });
}

/// `sum = a + b`, and [`rms_norm`] of the sum over whole rows: bitwise the two steps one after the other.
///
/// # Panics
/// When `a`, `b`, `sum` and `out` differ in shape, or `weight` does not have a value for each column.
pub fn add_rms_norm(
    isa: CpuIsa,
    a: Src<'_>,
    b: Src<'_>,
    weight: &[f32],
    eps: f32,
    sum: RowsMut<'_>,
    out: RowsMut<'_>,
) {
    a.check(&sum);
    b.check(&sum);
    assert_eq!((sum.rows(), sum.dim()), (out.rows(), out.dim()), "sum and output differ in shape");
    check(weight, out.dim(), &out);
    isa.run(AddRmsNorm { a, b, weight, eps, sum, out });
}

fn check(weight: &[f32], width: usize, out: &RowsMut<'_>) {
    assert!(
        width > 0 && out.dim().is_multiple_of(width),
        "a row of {} values is not whole pieces of {width}",
        out.dim()
    );
    assert!(weight.len() == width, "the norm's weight does not have {width} values");
}

/// # Safety
/// `x` must be readable for `n` f32.
#[inline(always)]
pub(super) unsafe fn sum_of_squares<S: Isa>(s: S, x: *const f32, n: usize) -> f32 {
    const STRIPE: usize = 4 * VIRTUAL_LANES;
    let mut sums = [V::splat(s, 0.0); 4];
    let mut i = 0;
    while i + STRIPE <= n {
        for (j, sum) in sums.iter_mut().enumerate() {
            // SAFETY: within the stripe, which is within `n`.
            let v = unsafe { V::load(s, x.add(i + j * VIRTUAL_LANES)) };
            *sum = v.fma(s, v, *sum);
        }
        i += STRIPE;
    }
    for sum in &mut sums {
        if i < n {
            let len = (n - i).min(VIRTUAL_LANES);
            // SAFETY: `len` values are left at `i`.
            let v = unsafe { V::load_partial(s, x.add(i), len) };
            *sum = v.fma(s, v, *sum);
            i += len;
        }
    }
    sums[0].add(s, sums[1]).add(s, sums[2].add(s, sums[3])).sum(s)
}

/// Norms `n` values.
///
/// # Safety
/// `x` and `weight` must be readable and `out` writable for `n` f32, apart from each other.
#[inline(always)]
unsafe fn norm<S: Isa>(s: S, x: *const f32, weight: *const f32, n: usize, eps: f32, out: *mut f32) {
    // SAFETY: the caller's contract.
    let squares = unsafe { sum_of_squares(s, x, n) };
    let scale = (1.0 / (f64::from(squares) / n as f64 + f64::from(eps)).sqrt()) as f32;
    let scales = s.splat(scale);
    let mut i = 0;
    while i < n {
        let len = (n - i).min(S::LANES);
        // SAFETY: `len` values are left at `i` in each.
        unsafe {
            if len == S::LANES {
                let y = s.mul(s.load(x.add(i)), scales);
                s.store(out.add(i), s.mul(y, s.load(weight.add(i))));
            } else {
                let y = s.mul(s.load_partial(x.add(i), len), scales);
                s.store_partial(out.add(i), s.mul(y, s.load_partial(weight.add(i), len)), len);
            }
        }
        i += len;
    }
}

struct RmsNorm<'a> {
    x: Src<'a>,
    weight: &'a [f32],
    width: usize,
    eps: f32,
    out: RowsMut<'a>,
}

impl Kernel for RmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        let weight = self.weight.as_ptr();
        for index in 0..self.out.rows() {
            let out = self.out.row(index);
            let x = self.x.row(index);
            let mut at = 0;
            while at < out.len() {
                // SAFETY: shapes were checked on entry: the piece lies in the row of `x` and of `out`, and `weight` has
                // `width` values.
                unsafe { norm(s, x.add(at), weight, self.width, self.eps, out.as_mut_ptr().add(at)) };
                at += self.width;
            }
        }
    }
}

struct AddRmsNorm<'a> {
    a: Src<'a>,
    b: Src<'a>,
    weight: &'a [f32],
    eps: f32,
    sum: RowsMut<'a>,
    out: RowsMut<'a>,
}

impl Kernel for AddRmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        let weight = self.weight.as_ptr();
        for index in 0..self.out.rows() {
            let sum = self.sum.row(index);
            let (a, b, n) = (self.a.row(index), self.b.row(index), sum.len());
            let sum = sum.as_mut_ptr();
            let mut i = 0;
            while i < n {
                let len = (n - i).min(S::LANES);
                // SAFETY: shapes were checked on entry; `len` values are left at `i`.
                unsafe {
                    if len == S::LANES {
                        s.store(sum.add(i), s.add(s.load(a.add(i)), s.load(b.add(i))));
                    } else {
                        let v = s.add(s.load_partial(a.add(i), len), s.load_partial(b.add(i), len));
                        s.store_partial(sum.add(i), v, len);
                    }
                }
                i += len;
            }
            // SAFETY: as above; `weight` has a value for each column.
            unsafe { norm(s, sum, weight, n, self.eps, self.out.row(index).as_mut_ptr()) };
        }
    }
}
