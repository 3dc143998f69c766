// Rows as blocks of 32 8-bit codes.

struct Params {
    rows: u32, bound: u32, per: u32, blocks: u32,
    x_at: u32, x_stride: u32,
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = group.y; row < rows; row += grid.y) {
        for (var b = group.x * (LANES / 8u); b < p.blocks; b += grid.x * (LANES / 8u)) {
            quantise_blocks(p.x_at + row * p.x_stride, row * p.blocks, b, p.blocks, lane);
        }
    }
}
