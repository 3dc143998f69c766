// A workgroup for each row and head.

struct Params {
    rows: u32, bound: u32, per: u32, heads: u32, blocks: u32, table: u32,
    k_at: u32, k_stride: u32, v_at: u32, v_stride: u32,
    pos_at: u32, seq_at: u32, pages_at: u32,
}

fn write(from_: u32, n: u32, to: u32, factor_at: u32, lane: u32) {
    for (var i = lane; i < n; i += LANES) {
        row_values[i] = arena[from_ + i];
    }
    workgroupBarrier();
    store_row(n, to, factor_at, lane);
    workgroupBarrier();
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = group.y; row < rows; row += grid.y) {
        for (var head = group.x; head < p.heads; head += grid.x) {
            let pages = p.pages_at + word(p.seq_at + row) * p.table;
            let to = kv_row(pages, p.blocks, head, word(p.pos_at + row));
            write(p.k_at + row * p.k_stride + head * DK, DK, to, to + ROW - 2u, lane);
            write(p.v_at + row * p.v_stride + head * DV, DV, to + K_WORDS, to + ROW - 1u, lane);
        }
    }
}
