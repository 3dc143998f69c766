// One pair a lane. Cosines and sines of the step's positions are inputs, [rows, 2 * half].

struct Params {
    rows: u32, bound: u32, per: u32, heads: u32, head_dim: u32, half: u32,
    x_at: u32, x_stride: u32, x_head: u32, out_at: u32, out_stride: u32, out_head: u32, table_at: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    let lanes = p.head_dim - p.half;
    for (var row = id.y; row < rows; row += grid.y) {
        for (var i = id.x; i < p.heads * lanes; i += 64u * grid.x) {
            let head = i / lanes;
            let d = i % lanes;
            let from_ = p.x_at + row * p.x_stride + head * p.x_head;
            let to = p.out_at + row * p.out_stride + head * p.out_head;
            if (d < p.half) {
                let table = p.table_at + row * 2u * p.half + d;
                let c = arena[table];
                let s = arena[table + p.half];
                let a = arena[from_ + d];
                let b = arena[from_ + p.half + d];
                arena[to + d] = fma(a, c, -(b * s));
                arena[to + p.half + d] = fma(b, c, a * s);
            } else {
                arena[to + p.half + d] = arena[from_ + p.half + d];
            }
        }
    }
}
