// An elementwise operation, as `select` numbers them.

//#if OP != 10
fn apply(a: f32, b: f32) -> f32 {
//#if OP == 0
    return a + b;
//#end
//#if OP == 1
    return a * b;
//#end
//#if OP == 2
    return silu_(a);
//#end
//#if OP == 3
    return gelu_tanh_(a);
//#end
//#if OP == 4
    return gelu_erf_(a);
//#end
//#if OP == 5
    return sigmoid_(a);
//#end
//#if OP == 6
    return silu_(a) * b;
//#end
//#if OP == 7
    return gelu_tanh_(a) * b;
//#end
//#if OP == 8
    return gelu_erf_(a) * b;
//#end
//#if OP == 9
    return sigmoid_(a) * b;
//#end
}
//#end
