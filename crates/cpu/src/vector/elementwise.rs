//! Element by element: activations, sums, products, gates.

use super::math;
use super::rows::{Rows, RowsMut, Src};
use crate::isa::{CpuIsa, Isa, Kernel};

/// A function of one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// x times a constant
    Scale(f32),
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// x / (1 + e^-x)
    Silu,
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    GeluTanh,
    /// x times the normal distribution function of x
    GeluErf,
}

/// A function of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// a + b
    Add,
    /// a b
    Mul,
    /// silu(a) b: the gate and the value of SwiGLU
    SiluMul,
    /// gelu(a) b in the tanh form: GeGLU
    GeluTanhMul,
    /// gelu(a) b in the exact form
    GeluErfMul,
    /// sigmoid(a) b
    SigmoidMul,
}

/// Applies `op` to every value of `x`.
///
/// # Panics
/// When `x` and `out` differ in shape.
pub fn unary(isa: CpuIsa, op: Unary, x: Src<'_>, out: RowsMut<'_>) {
    x.check(&out);
    isa.run(UnaryKernel { op, x, out });
}

/// Applies `op` to every pair of values of `a` and `b`.
///
/// # Panics
/// When `a`, `b` and `out` differ in shape.
pub fn binary(isa: CpuIsa, op: Binary, a: Src<'_>, b: Src<'_>, out: RowsMut<'_>) {
    a.check(&out);
    b.check(&out);
    isa.run(BinaryKernel { op, a, b, out });
}

/// Sums of rows of `y`, each times its weight, in their order: a row of `out` is that of as many rows of `y` as a row of
/// `weights` has values.
///
/// # Panics
/// When shapes do not fit together.
pub fn weighted_sums(isa: CpuIsa, y: Rows<'_>, weights: Rows<'_>, out: RowsMut<'_>) {
    assert_eq!(weights.rows(), out.rows(), "a row of weights for each sum");
    assert_eq!(y.rows(), out.rows() * weights.dim(), "a weight for each row");
    assert_eq!(y.dim(), out.dim(), "sums as long as the rows");
    isa.run(WeightedSums { y, weights, out });
}

struct WeightedSums<'a> {
    y: Rows<'a>,
    weights: Rows<'a>,
    out: RowsMut<'a>,
}

impl Kernel for WeightedSums<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        for index in 0..self.out.rows() {
            let (out, weights) = (self.out.row(index), self.weights.row(index));
            let (n, out) = (out.len(), out.as_mut_ptr());
            for i in (0..n).step_by(S::LANES) {
                let mut sum = s.splat(0.0);
                for (slot, &weight) in weights.iter().enumerate() {
                    let y = self.y.row(index * weights.len() + slot).as_ptr();
                    // SAFETY: the rows are `n` long (checked on entry), and a part of a vector is loaded as one.
                    sum = unsafe {
                        let y = if i + S::LANES <= n {
                            s.load(y.add(i))
                        } else {
                            s.load_partial(y.add(i), n - i)
                        };
                        s.fma(s.splat(weight), y, sum)
                    };
                }
                // SAFETY: as above.
                unsafe {
                    if i + S::LANES <= n {
                        s.store(out.add(i), sum);
                    } else {
                        s.store_partial(out.add(i), sum, n - i);
                    }
                }
            }
        }
    }
}

struct UnaryKernel<'a> {
    op: Unary,
    x: Src<'a>,
    out: RowsMut<'a>,
}

struct BinaryKernel<'a> {
    op: Binary,
    a: Src<'a>,
    b: Src<'a>,
    out: RowsMut<'a>,
}

/// A function of each lane. A trait, because a closure would be compiled without the instruction set's features.
trait Map2 {
    fn apply<S: Isa>(&self, s: S, a: S::F, b: S::F) -> S::F;
}

/// Defines a [`Map2`] that forwards to the expression.
macro_rules! map2 {
    ($name:ident $(($field:ty))?, |$this:pat_param, $s:ident, $a:ident, $b:pat_param| $body:expr) => {
        struct $name $(($field))?;
        impl Map2 for $name {
            #[inline(always)]
            fn apply<S: Isa>(&self, $s: S, $a: S::F, $b: S::F) -> S::F {
                let $this = self;
                $body
            }
        }
    };
}

map2!(Scale(f32), |this, s, x, _| s.mul(x, s.splat(this.0)));
map2!(Sigmoid, |_, s, x, _| math::sigmoid(s, x));
map2!(Silu, |_, s, x, _| math::silu(s, x));
map2!(GeluTanh, |_, s, x, _| math::gelu_tanh(s, x));
map2!(GeluErf, |_, s, x, _| math::gelu_erf(s, x));
map2!(Add, |_, s, a, b| s.add(a, b));
map2!(Mul, |_, s, a, b| s.mul(a, b));
map2!(SiluMul, |_, s, a, b| s.mul(math::silu(s, a), b));
map2!(GeluTanhMul, |_, s, a, b| s.mul(math::gelu_tanh(s, a), b));
map2!(GeluErfMul, |_, s, a, b| s.mul(math::gelu_erf(s, a), b));
map2!(SigmoidMul, |_, s, a, b| s.mul(math::sigmoid(s, a), b));

#[inline(always)]
fn map2<S: Isa>(s: S, op: impl Map2, a: Src<'_>, b: Src<'_>, mut out: RowsMut<'_>) {
    for index in 0..out.rows() {
        let out = out.row(index);
        let (a, b, n) = (a.row(index), b.row(index), out.len());
        let out = out.as_mut_ptr();
        let mut i = 0;
        while i + S::LANES <= n {
            // SAFETY: the operands have as many values as `out` (checked on entry), and `i + LANES <= n`.
            unsafe { s.store(out.add(i), op.apply(s, s.load(a.add(i)), s.load(b.add(i)))) };
            i += S::LANES;
        }
        if i < n {
            // SAFETY: as above for the `n - i` values that are left.
            unsafe {
                let (a, b) = (s.load_partial(a.add(i), n - i), s.load_partial(b.add(i), n - i));
                s.store_partial(out.add(i), op.apply(s, a, b), n - i);
            }
        }
    }
}

impl Kernel for UnaryKernel<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let Self { op, x, out } = self;
        match op {
            Unary::Scale(c) => map2(s, Scale(c), x, x, out),
            Unary::Sigmoid => map2(s, Sigmoid, x, x, out),
            Unary::Silu => map2(s, Silu, x, x, out),
            Unary::GeluTanh => map2(s, GeluTanh, x, x, out),
            Unary::GeluErf => map2(s, GeluErf, x, x, out),
        }
    }
}

impl Kernel for BinaryKernel<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Isa>(self, s: S) {
        let Self { op, a, b, out } = self;
        match op {
            Binary::Add => map2(s, Add, a, b, out),
            Binary::Mul => map2(s, Mul, a, b, out),
            Binary::SiluMul => map2(s, SiluMul, a, b, out),
            Binary::GeluTanhMul => map2(s, GeluTanhMul, a, b, out),
            Binary::GeluErfMul => map2(s, GeluErfMul, a, b, out),
            Binary::SigmoidMul => map2(s, SigmoidMul, a, b, out),
        }
    }
}
