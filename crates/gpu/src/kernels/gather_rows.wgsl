// Rows of an intermediate by id; an id beyond it gives zeros.

struct Params {
    rows: u32, bound: u32, per: u32, width: u32,
    ids_at: u32, table_at: u32, table_stride: u32, known: u32, out_at: u32, out_stride: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.y; row < rows; row += grid.y) {
        let entry = word(p.ids_at + row);
        for (var i = id.x; i < p.width; i += 64u * grid.x) {
            var x = 0.0;
            if (entry < p.known) {
                x = arena[p.table_at + entry * p.table_stride + i];
            }
            arena[p.out_at + row * p.out_stride + i] = x;
        }
    }
}
