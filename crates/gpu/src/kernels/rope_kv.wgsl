// Queries and keys, rotated; the keys go into the cache, with the values. NORM: heads of both are normed before. A
// workgroup for each row and head: those of the queries first, then those of keys and values. The arithmetic, step by step,
// is that of rms_norm.wgsl, rope.wgsl and kv_write.wgsl.

struct Params {
    rows: u32, bound: u32, per: u32, heads: u32, kv_heads: u32, blocks: u32, table: u32, half: u32,
    q_at: u32, q_stride: u32, k_at: u32, k_stride: u32, v_at: u32, v_stride: u32, out_at: u32, out_stride: u32,
    pos_at: u32, seq_at: u32, pages_at: u32, angles_at: u32,
    q_gain_at: u32, k_gain_at: u32, q_eps: f32, k_eps: f32,
    // DK, which no division must know beforehand: compilers have other ways to divide by a constant.
    width: u32,
}

//#if NORM == 1
fn norm(is_query: bool, lane: u32) {
    var sum = 0.0;
    for (var i = lane; i < DK; i += LANES) {
        let x = row_values[i];
        sum = fma(x, x, sum);
    }
    let scale = 1.0 / sqrt(total(sum, lane) / f32(p.width) + select(p.k_eps, p.q_eps, is_query));
    for (var i = lane; i < DK; i += LANES) {
        var gain = 0.0;
        if (is_query) {
            gain = q_gain[p.q_gain_at + i];
        } else {
            gain = k_gain[p.k_gain_at + i];
        }
        row_values[i] = row_values[i] * (scale * gain);
    }
}
//#end

fn load(from_: u32, n: u32, lane: u32) {
    for (var i = lane; i < n; i += LANES) {
        row_values[i] = arena[from_ + i];
    }
}

// Each pair is one lane's.
fn rotate(row: u32, lane: u32) {
    for (var d = lane; d < p.half; d += LANES) {
        let angle = p.angles_at + row * 2u * p.half + d;
        let c = arena[angle];
        let s = arena[angle + p.half];
        let a = row_values[d];
        let b = row_values[p.half + d];
        row_values[d] = fma(a, c, -(b * s));
        row_values[p.half + d] = fma(b, c, a * s);
    }
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = group.y; row < rows; row += grid.y) {
        for (var head = group.x; head < p.heads + p.kv_heads; head += grid.x) {
            let is_query = head < p.heads;
            let own = select(head - p.heads, head, is_query);
            let from_ = select(p.k_at + row * p.k_stride, p.q_at + row * p.q_stride, is_query);
            load(from_ + own * DK, DK, lane);
//#if NORM == 1
            norm(is_query, lane);
//#end
            workgroupBarrier();
            rotate(row, lane);
            workgroupBarrier();
            if (is_query) {
                for (var i = lane; i < DK; i += LANES) {
                    arena[p.out_at + row * p.out_stride + own * DK + i] = row_values[i];
                }
            } else {
                let pages = p.pages_at + word(p.seq_at + row) * p.table;
                let to = kv_row(pages, p.blocks, own, word(p.pos_at + row));
                store_row(DK, to, to + ROW - 2u, lane);
                workgroupBarrier();
                load(p.v_at + row * p.v_stride + own * DV, DV, lane);
                workgroupBarrier();
                store_row(DV, to + K_WORDS, to + ROW - 1u, lane);
            }
            workgroupBarrier();
        }
    }
}
