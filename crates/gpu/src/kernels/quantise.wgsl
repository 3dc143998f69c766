// Rows as blocks of 32 8-bit codes, a block a lane.

struct Params {
    rows: u32, bound: u32, per: u32, blocks: u32,
    x_at: u32, x_stride: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.y; row < rows; row += grid.y) {
        for (var b = id.x; b < p.blocks; b += 64u * grid.x) {
            quantise_block(p.x_at + row * p.x_stride + 32u * b, row * p.blocks + b);
        }
    }
}
