// A workgroup for each row and head.

struct Params {
    rows: u32, bound: u32, per: u32, heads: u32, blocks: u32, table: u32,
    k_at: u32, k_stride: u32, v_at: u32, v_stride: u32,
    pos_at: u32, seq_at: u32, pages_at: u32,
}

//#if HALF == 1
var<workgroup> largest: array<u32, 64>;

// Rounds to binary16, to nearest and ties to even.
fn to_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (size >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (size < 0x38800000u) {
        return sign | u32(round(bitcast<f32>(size) * 16777216.0));
    }
    return sign | ((size + 0xfffu + ((size >> 13u) & 1u) - 0x38000000u) >> 13u);
}

fn power(e: i32) -> f32 {
    return bitcast<f32>(u32(127 + e) << 23u);
}

// The largest value becomes 2^14 to 2^15. Both powers of two are kept normal.
fn exponent_of(from_: u32, n: u32, lane: u32) -> i32 {
    var most = 0u;
    for (var i = lane; i < n; i += 64u) {
        most = max(most, bitcast<u32>(arena[from_ + i]) & 0x7fffffffu);
    }
    workgroupBarrier();
    largest[lane] = most;
    for (var half_ = 32u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        if (lane < half_) {
            largest[lane] = max(largest[lane], largest[lane + half_]);
        }
    }
    workgroupBarrier();
    return min(14 + 127 - i32(largest[0] >> 23u), 126);
}

fn store(from_: u32, n: u32, to: u32, factor_at: u32, lane: u32) {
    let e = exponent_of(from_, n, lane);
    for (var i = lane; i < (n + 1u) / 2u; i += 64u) {
        var packed = to_half(arena[from_ + 2u * i] * power(e));
        if (2u * i + 1u < n) {
            packed |= to_half(arena[from_ + 2u * i + 1u] * power(e)) << 16u;
        }
        kv[to + i] = packed;
    }
    if (lane == 0u) {
        kv[factor_at] = bitcast<u32>(power(-e));
    }
}
//#end
//#if HALF == 0
fn store(from_: u32, n: u32, to: u32, factor_at: u32, lane: u32) {
    for (var i = lane; i < n; i += 64u) {
        kv[to + i] = bitcast<u32>(arena[from_ + i]);
    }
}
//#end

@compute @workgroup_size(64)
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
            store(p.k_at + row * p.k_stride + head * DK, DK, to, to + ROW - 2u, lane);
            store(p.v_at + row * p.v_stride + head * DV, DV, to + K_WORDS, to + ROW - 1u, lane);
        }
    }
}
