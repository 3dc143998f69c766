// Helpers of every kernel.

const NONE: u32 = 0xffffffffu;

// A scalar of the step.
fn scalar(at: u32) -> u32 {
    return scalars[at / 4u][at % 4u];
}

// How many rows are real: `per` times a scalar of the step, or all where there is none.
fn bounded(rows: u32, bound: u32, per: u32) -> u32 {
    if (bound == NONE) {
        return rows;
    }
    return min(rows, per * scalar(bound));
}

fn word(at: u32) -> u32 {
    return bitcast<u32>(arena[at]);
}

// Neither infinite nor NaN. By bits: compilers may take it that NaN does not occur.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u;
}

fn not_a_number() -> f32 {
    return bitcast<f32>(0x7fc00000u | (scalars[0].x & 0u));
}

fn infinity() -> f32 {
    return bitcast<f32>(0x7f800000u | (scalars[0].x & 0u));
}

// binary16 to f32, exactly: `unpack2x16float` may flush subnormals.
fn half(bits: u32) -> f32 {
    let sign = (bits & 0x8000u) << 16u;
    let exponent = (bits >> 10u) & 31u;
    let fraction = bits & 0x3ffu;
    if (exponent == 0u) {
        return bitcast<f32>(sign | bitcast<u32>(f32(fraction) * 0x1p-24));
    }
    if (exponent == 31u) {
        return bitcast<f32>(sign | 0x7f800000u | (fraction << 13u) | (scalars[0].x & 0u));
    }
    return bitcast<f32>(sign | ((exponent + 112u) << 23u) | (fraction << 13u));
}
