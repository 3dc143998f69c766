// Ids of which some stand for slots of tokens drawn before: one a lane.

struct Params { rows: u32, bound: u32, per: u32, ids_at: u32, out_at: u32 }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.x; row < rows; row += 64u * grid.x) {
        var token = word(p.ids_at + row);
        if ((token & 0x80000000u) != 0u) {
            token = drawn[token ^ 0x80000000u];
        }
        arena[p.out_at + row] = bitcast<f32>(token);
    }
}
