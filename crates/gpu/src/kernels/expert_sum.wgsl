// One element a lane: the chosen experts' rows, weighted, in slot order.

struct Params {
    rows: u32, bound: u32, per: u32, width: u32, k: u32,
    y_at: u32, y_stride: u32, weights_at: u32, weights_stride: u32, out_at: u32, out_stride: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.y; row < rows; row += grid.y) {
        for (var i = id.x; i < p.width; i += 64u * grid.x) {
            var sum = 0.0;
            for (var slot = 0u; slot < p.k; slot++) {
                let y = arena[p.y_at + (row * p.k + slot) * p.y_stride + i];
                sum = fma(arena[p.weights_at + row * p.weights_stride + slot], y, sum);
            }
            arena[p.out_at + row * p.out_stride + i] = sum;
        }
    }
}
