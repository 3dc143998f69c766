// Rows of a packed table by id: one block a lane. A table may lie in several chunks of rows, `first` up to `first + n`; an
// id beyond all of them gives zeros.

struct Params {
    rows: u32, bound: u32, per: u32, blocks: u32, width: u32,
    ids_at: u32, out_at: u32, out_stride: u32,
    first: u32, n: u32, known: u32,
    codes_at: u32, high_at: u32, scale_at: u32, codes_row: u32, high_row: u32, scale_row: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.y; row < rows; row += grid.y) {
        let entry = word(p.ids_at + row);
        let here = entry - p.first;
        let zeros = p.first == 0u && entry >= p.known;
        if (!zeros && here >= p.n) {
            continue;
        }
        for (var b = id.x; b < p.blocks; b += 64u * grid.x) {
            let to = p.out_at + row * p.out_stride + 32u * b;
            var x: array<vec4<f32>, 8>;
            if (!zeros) {
                x = block_elements(0u, 
                    p.codes_at + here * p.codes_row, p.high_at + here * p.high_row, p.scale_at + here * p.scale_row, b);
            }
//#for i in 8
//#for j in 4
            if (32u * b + 4u * ${i}u + ${j}u < p.width) {
                arena[to + 4u * ${i}u + ${j}u] = x[${i}][${j}];
            }
//#end
//#end
        }
    }
}
