//! Sums, products and activation functions.

use super::reference::{Bounds, FLUSH, ReferenceError, UNIT, rounded, wide};
use super::{Check, Op, Operand, OperandError, result};
use crate::{DType, HostTensor};

/// Two-operand arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a * b`
    Mul,
}

/// Activation functions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` (Hendrycks and Gimpel, 2016, the tanh form)
    GeluTanh,
    /// `x/2 (1 + erf(x / sqrt 2))` (Hendrycks and Gimpel, 2016)
    GeluErf,
    /// `1 / (1 + e^-x)`
    Sigmoid,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 4] =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Sigmoid];

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::GeluErf => "gelu_erf",
            Activation::Sigmoid => "sigmoid",
        }
    }

    /// The function in f64. The error function is used through its complement, which keeps its digits where
    /// `1 + erf` cancels.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let t = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                // 1 + tanh(t), without the cancellation at large negative t.
                x / (1.0 + (-2.0 * t).exp())
            }
            Activation::GeluErf => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        }
    }

    /// How far a kernel may lie from [`Activation::apply`]: an exponential or error function of a few units, and for
    /// GELU the cancellation of `1 + erf` (or `1 + tanh`), which leaves errors of the size of `x`. Results that are
    /// subnormal up to the factor `x` may be flushed.
    fn bound(self, x: f64) -> f64 {
        let size = match self {
            Activation::Silu | Activation::Sigmoid => self.apply(x).abs(),
            Activation::GeluTanh | Activation::GeluErf => x.abs(),
        };
        8.0 * UNIT * size + FLUSH * x.abs().max(1.0)
    }
}

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    c.is(0, DType::F32)?;
    if matches!(op, Op::Binary(_) | Op::GatedActivate(_)) {
        c.exactly(1, DType::F32, c.dims(0))?;
    }
    Ok(vec![result(DType::F32, c.dims(0))])
}

pub(super) fn reference(op: &Op, args: &[HostTensor]) -> Result<Vec<HostTensor>, ReferenceError> {
    let a = wide(&args[0])?;
    let b = args.get(1).map(wide).transpose()?.unwrap_or_default();
    let pairs = || a.iter().zip(&b);
    let y: Vec<f64> = match op {
        Op::Binary(Binary::Add) => pairs().map(|(a, b)| a + b).collect(),
        Op::Binary(Binary::Mul) => pairs().map(|(a, b)| a * b).collect(),
        Op::GatedActivate(act) => pairs().map(|(a, b)| act.apply(*a) * b).collect(),
        Op::Activate(act) => a.iter().map(|a| act.apply(*a)).collect(),
        Op::Scale { factor } => a.iter().map(|a| a * f64::from(*factor)).collect(),
        _ => unreachable!("not an elementwise op"),
    };
    Ok(vec![rounded(args[0].dims(), &y)?])
}

pub(super) fn bounds(op: &Op, args: &[HostTensor]) -> Result<Bounds, ReferenceError> {
    let a = wide(&args[0])?;
    Ok(vec![match op {
        Op::GatedActivate(act) => {
            let pairs = a.iter().zip(wide(&args[1])?);
            // The activation's error carries over, and activation and product round once each.
            let bound = |(a, b): (&f64, f64)| {
                act.bound(*a) * b.abs() + 2.0 * UNIT * (act.apply(*a) * b).abs() + FLUSH
            };
            pairs.map(bound).collect()
        }
        Op::Activate(act) => a.iter().map(|a| act.bound(*a)).collect(),
        // Sums and products of two numbers are correctly rounded everywhere.
        Op::Binary(Binary::Mul) => {
            wide(&args[1])?.iter().zip(&a).map(|(b, a)| FLUSH * (1.0 + a.abs().max(b.abs()))).collect()
        }
        Op::Scale { factor } => vec![FLUSH * (1.0 + f64::from(factor.abs())); a.len()],
        _ => vec![2.0 * FLUSH; a.len()],
    }])
}
