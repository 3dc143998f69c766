//! Sums, products and activation functions.

use super::{Check, Op, Operand, OperandError, result};
use crate::DType;

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
}

pub(super) fn infer(op: &Op, c: &Check) -> Result<Vec<Operand>, OperandError> {
    c.is(0, DType::F32)?;
    if matches!(op, Op::Binary(_) | Op::GatedActivate(_)) {
        c.exactly(1, DType::F32, c.dims(0))?;
    }
    Ok(vec![result(DType::F32, c.dims(0))])
}
