// One element a lane; rows over the grid's second axis.

struct Params {
    rows: u32, bound: u32, per: u32, width: u32,
    a_at: u32, a_stride: u32, b_at: u32, b_stride: u32,
    out_at: u32, out_stride: u32, factor: f32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.y; row < rows; row += grid.y) {
        for (var i = id.x; i < p.width; i += 64u * grid.x) {
            let a = arena[p.a_at + row * p.a_stride + i];
            let b = arena[p.b_at + row * p.b_stride + i];
//#if OP == 10
            arena[p.out_at + row * p.out_stride + i] = a * p.factor;
//#end
//#if OP != 10
            arena[p.out_at + row * p.out_stride + i] = apply(a, b);
//#end
        }
    }
}
