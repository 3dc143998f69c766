// One element a lane; rows over the grid's second axis.

struct Params {
    rows: u32, bound: u32, per: u32, width: u32,
    a_at: u32, a_stride: u32, b_at: u32, b_stride: u32,
    out_at: u32, out_stride: u32, factor: f32,
}

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
//#if OP == 10
    return a * p.factor;
//#end
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.y; row < rows; row += grid.y) {
        for (var i = id.x; i < p.width; i += 64u * grid.x) {
            let a = arena[p.a_at + row * p.a_stride + i];
            let b = arena[p.b_at + row * p.b_stride + i];
            arena[p.out_at + row * p.out_stride + i] = apply(a, b);
        }
    }
}
