// Elementary functions, by the polynomials of the CPU backend: the built-in ones differ from driver to driver.

// e^x within 2 ulp. Results below the smallest normal f32 are zero.
fn exp_(x: f32) -> f32 {
    if (x < -87.33654) {
        return 0.0;
    }
    if (x > 88.72283) {
        return infinity();
    }
    let n = i32(round(x * 1.4426950408889634));
    let whole = f32(n);
    var r = fma(-whole, 0.693359375, x);
    r = fma(-whole, -2.1219444e-4, r);
    var q = 0.0013813133;
    q = fma(q, r, 0.00836942);
    q = fma(q, r, 0.041668456);
    q = fma(q, r, 0.16666515);
    q = fma(q, r, 0.49999994);
    let y = fma(r * r, q, r) + 1.0;
    return bitcast<f32>(bitcast<u32>(y) + (bitcast<u32>(n) << 23u));
}

fn sigmoid_(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_(-x));
}

fn silu_(x: f32) -> f32 {
    return x / (1.0 + exp_(-x));
}

fn tanh_(x: f32) -> f32 {
    let size = abs(x);
    if (size < 0.6) {
        let square = x * x;
        var q = -0.0058951117;
        q = fma(q, square, 0.02079593);
        q = fma(q, square, -0.053783815);
        q = fma(q, square, 0.13331924);
        q = fma(q, square, -0.333333);
        return fma(x * square, q, x);
    }
    let y = 1.0 - 2.0 / (exp_(size + size) + 1.0);
    return select(y, -y, x < 0.0);
}

// x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3)
fn gelu_tanh_(x: f32) -> f32 {
    let slope = fma(x * x, -0.07135481627159703, -1.5957691216057308);
    return x / (1.0 + exp_(x * slope));
}

fn gelu_erf_(x: f32) -> f32 {
    let size = abs(x);
    let t = 1.0 / fma(size, 0.3, 1.0);
    var g = -0.020579444;
    g = fma(g, t, 0.11218766);
    g = fma(g, t, -0.2276072);
    g = fma(g, t, 0.19094095);
    g = fma(g, t, -0.07868928);
    g = fma(g, t, 0.09574313);
    g = fma(g, t, 0.078540236);
    g = fma(g, t, 0.11020136);
    g = fma(g, t, 0.11957615);
    g = fma(g, t, 0.119686455);
    g = g * t;
    // What rounding x^2 loses matters to the exponential of a large square.
    let square = x * x;
    let lost = fma(x, x, -square) * 0.5;
    var e = exp_(square * -0.5);
    e = fma(-e, lost, e);
    // Beyond 14 the tail vanishes; x is held there so that infinity is not multiplied by zero.
    let tail = select(0.0, g * e, size < 14.0);
    if (x < 0.0) {
        return select(0.0, x * tail, size < 14.0);
    }
    return fma(-min(x, 14.0), tail, x);
}
