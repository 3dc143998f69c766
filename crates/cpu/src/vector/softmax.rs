//! Softmax over rows.

use super::lanes::V;
use super::rows::{RowsMut, Src};
use crate::isa::{CpuIsa, Isa, Kernel, VIRTUAL_LANES};

/// `e^(x - max) / sum` over each row; the exponentials are summed in sixteen lanes, then by a fixed tree.
///
/// A NaN, or a row without anything above minus infinity, gives NaN in the whole row.
///
/// # Panics
/// When `x` and `out` differ in shape.
pub fn softmax(isa: CpuIsa, x: Src<'_>, out: RowsMut<'_>) {
    x.check(&out);
    isa.run(Softmax { x, out });
}

struct Softmax<'a> {
    x: Src<'a>,
    out: RowsMut<'a>,
}

impl Kernel for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        for index in 0..self.out.rows() {
            let out = self.out.row(index);
            let (x, n) = (self.x.row(index), out.len());
            // SAFETY: shapes were checked on entry.
            unsafe { row(s, x, n, out.as_mut_ptr()) };
        }
    }
}

/// # Safety
/// `x` must be readable and `out` writable for `n` f32, apart from each other.
#[inline(always)]
unsafe fn row<S: Isa>(s: S, x: *const f32, n: usize, out: *mut f32) {
    let whole = n - n % VIRTUAL_LANES;
    let rest = n - whole;
    let lowest = V::splat(s, f32::NEG_INFINITY);
    let mut tail = [f32::NEG_INFINITY; VIRTUAL_LANES];
    // SAFETY: `rest` values are left at `whole`, fewer than `tail` holds.
    unsafe { std::ptr::copy_nonoverlapping(x.add(whole), tail.as_mut_ptr(), rest) };
    // SAFETY: `tail` holds 16.
    let tail_lanes = unsafe { V::load(s, tail.as_ptr()) };

    let mut largest = tail_lanes.max(s, lowest);
    let mut i = 0;
    while i < whole {
        // SAFETY: `i + 16 <= whole <= n`.
        largest = unsafe { V::load(s, x.add(i)) }.max(s, largest);
        i += VIRTUAL_LANES;
    }
    let max = V::splat(s, largest.largest(s));

    let mut sum = V::splat(s, 0.0);
    let mut i = 0;
    while i < whole {
        // SAFETY: `i + 16 <= whole <= n`; the lanes are read before they are written.
        unsafe {
            let e = V::load(s, x.add(i)).sub(s, max).exp(s);
            e.store(s, out.add(i));
            sum = sum.add(s, e);
        }
        i += VIRTUAL_LANES;
    }
    let e = tail_lanes.sub(s, max).exp(s);
    let tail = e.to_array(s);
    sum = sum.add(s, e);
    let total = sum.sum(s);

    // SAFETY: `rest` values are left at `whole`.
    unsafe { std::ptr::copy_nonoverlapping(tail.as_ptr(), out.add(whole), rest) };
    let totals = s.splat(total);
    let mut i = 0;
    while i < n {
        let len = (n - i).min(S::LANES);
        // SAFETY: `len` values are left at `i`.
        unsafe {
            if len == S::LANES {
                s.store(out.add(i), s.div(s.load(out.add(i)), totals));
            } else {
                s.store_partial(out.add(i), s.div(s.load_partial(out.add(i), len), totals), len);
            }
        }
        i += len;
    }
}
