// Tiles of ROWS rows of weights by COLS rows of activations. LANES lanes share a tile: they take blocks of the inner
// dimension, LANES apart, and their sums are added in a tree. The order of every sum depends on the inner dimension
// alone, so that any ROWS, COLS and UNROLL give the same bits. INTEGER: activations are 8-bit codes. EXPERTS: each row
// has an expert of its own, whose matrix follows those before it. SUBGROUP: the lanes of a tile are a subgroup, and SUBS of
// them a workgroup; otherwise they are a workgroup. SEGMENTS: matrices of one type with the same input, in one buffer.

struct Segment {
    n: u32, out_at: u32, out_stride: u32, bias_at: u32,
    codes_at: u32, high_at: u32, scale_at: u32, unused: u32,
}

struct Params {
    rows: u32, bound: u32, per: u32, blocks: u32,
    k: u32, x_at: u32, x_stride: u32, codes_row: u32,
    high_row: u32, scale_row: u32, ids_at: u32, expert_rows: u32,
    // Experts: first row of the chunk that is bound, how many rows share one of x, and how many experts there are.
    first: u32, share: u32, experts: u32, count: u32,
    segments: array<Segment, SEGMENTS>,
}

//#if SUBGROUP == 0
var<workgroup> sums: array<f32, LANES * ROWS * COLS>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    walk(group.x, grid.x, group.y, grid.y, lane);
}
//#end
//#if SUBGROUP == 1
@compute @workgroup_size(LANES * SUBS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(subgroup_id) sub: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    walk(group.x * SUBS + sub, grid.x * SUBS, group.y, grid.y, lane);
}
//#end

fn walk(first_tile: u32, tile_step: u32, first_group: u32, group_step: u32, lane: u32) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var first_row = first_group * COLS; first_row < rows; first_row += group_step * COLS) {
        let cols = min(COLS, rows - first_row);
        var before = 0u;
        for (var s = 0u; s < p.count; s++) {
//#if EXPERTS == 0
            let tiles = (p.segments[s].n + ROWS - 1u) / ROWS;
//#end
//#if EXPERTS == 1
            let tiles = (p.expert_rows + ROWS - 1u) / ROWS;
//#end
            // The first tile of this segment that is ours.
            var t = first_tile;
            if (t < before) {
                t += (before - t + tile_step - 1u) / tile_step * tile_step;
            }
            for (; t < before + tiles; t += tile_step) {
                tile(s, (t - before) * ROWS, first_row, cols, lane);
            }
            before += tiles;
        }
    }
}

fn tile(s: u32, n0: u32, first_row: u32, cols: u32, lane: u32) {
    let segment = p.segments[s];
//#for r in ROWS
//#for c in COLS
    var sum_${r}_${c} = 0.0;
//#end
//#end
//#if EXPERTS == 1
    // COLS is 1. The rows of this expert that the chunk does not hold are another dispatch's.
    let expert = min(word(p.ids_at + first_row), p.experts - 1u);
    let base = expert * p.expert_rows - p.first;
//#end
//#for r in ROWS
//#if EXPERTS == 0
    let w_${r} = min(n0 + ${r}u, segment.n - 1u);
//#end
//#if EXPERTS == 1
    let w_${r} = min(base + n0 + ${r}u, segment.n - 1u);
//#end
    let codes_${r} = segment.codes_at + w_${r} * p.codes_row;
    let high_${r} = segment.high_at + w_${r} * p.high_row;
    let scale_${r} = segment.scale_at + w_${r} * p.scale_row;
//#end
//#for c in COLS
//#if EXPERTS == 0
    let x_${c} = first_row + min(${c}u, cols - 1u);
//#end
//#if EXPERTS == 1
    let x_${c} = (first_row + ${c}u) / p.share;
//#end
//#end
    var b = lane;
//#if INTEGER == 1
//#if UNROLL != 1
    // All loads of several blocks first, so that they are under way together.
    for (; b + (UNROLL - 1u) * LANES < p.blocks; b += UNROLL * LANES) {
//#for u in UNROLL
//#for r in ROWS
        let q_${u}_${r} = block_codes(codes_${r}, high_${r}, b + ${u}u * LANES);
        let s_${u}_${r} = block_scales(scale_${r}, b + ${u}u * LANES);
//#end
//#end
//#for u in UNROLL
//#for c in COLS
        {
            let at = x_${c} * p.blocks + b + ${u}u * LANES;
            let a0 = acts[2u * at];
            let a1 = acts[2u * at + 1u];
            let m = meta_[at];
//#for r in ROWS
            sum_${r}_${c} = add_block(q_${u}_${r}, s_${u}_${r}, a0, a1, m, sum_${r}_${c});
//#end
        }
//#end
//#end
    }
//#end
    for (; b < p.blocks; b += LANES) {
//#for r in ROWS
        let q_${r} = block_codes(codes_${r}, high_${r}, b);
        let s_${r} = block_scales(scale_${r}, b);
//#end
//#for c in COLS
        {
            let at = x_${c} * p.blocks + b;
            let a0 = acts[2u * at];
            let a1 = acts[2u * at + 1u];
            let m = meta_[at];
//#for r in ROWS
            sum_${r}_${c} = add_block(q_${r}, s_${r}, a0, a1, m, sum_${r}_${c});
//#end
        }
//#end
    }
//#end
//#if INTEGER == 0
    for (; b < p.blocks; b += LANES) {
        // Beyond k, weights are zeros and activations somebody else's.
        let left = p.k - 32u * b;
//#for r in ROWS
        let w_${r}_ = block_elements(codes_${r}, high_${r}, scale_${r}, b);
//#end
//#for c in COLS
        {
            let at = p.x_at + x_${c} * p.x_stride + 32u * b;
            for (var i = 0u; i < 8u; i++) {
                var x = vec4<f32>(0.0);
                if (4u * i + 4u <= left) {
                    x = vec4<f32>(arena[at + 4u * i], arena[at + 4u * i + 1u], arena[at + 4u * i + 2u], arena[at + 4u * i + 3u]);
                } else {
//#for j in 4
                    if (4u * i + ${j}u < left) { x[${j}] = arena[at + 4u * i + ${j}u]; }
//#end
                }
//#for r in ROWS
                {
                    let w = w_${r}_[i];
                    sum_${r}_${c} = fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum_${r}_${c}))));
                }
//#end
            }
        }
//#end
    }
//#end
//#if SUBGROUP == 1
//#for r in ROWS
//#for c in COLS
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        sum_${r}_${c} = sum_${r}_${c} + subgroupShuffleXor(sum_${r}_${c}, half_);
    }
    if (lane == (${r}u * COLS + ${c}u) % LANES) {
//#if EXPERTS == 0
        store(s, n0 + ${r}u, ${c}u, first_row, cols, n0 + ${r}u, sum_${r}_${c});
//#end
//#if EXPERTS == 1
        store(s, n0 + ${r}u, ${c}u, first_row, cols, base + n0 + ${r}u, sum_${r}_${c});
//#end
    }
//#end
//#end
//#end
//#if SUBGROUP == 0
//#for r in ROWS
//#for c in COLS
    sums[(${r}u * COLS + ${c}u) * LANES + lane] = sum_${r}_${c};
//#end
//#end
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        for (var i = lane; i < ROWS * COLS * half_; i += LANES) {
            let at = i / half_ * LANES + i % half_;
            sums[at] = sums[at] + sums[at + half_];
        }
    }
    workgroupBarrier();
    for (var i = lane; i < ROWS * COLS; i += LANES) {
        let n = n0 + i / COLS;
//#if EXPERTS == 0
        store(s, n, i % COLS, first_row, cols, n, sums[i * LANES]);
//#end
//#if EXPERTS == 1
        store(s, n, i % COLS, first_row, cols, base + n, sums[i * LANES]);
//#end
    }
    workgroupBarrier();
//#end
}

// `at`: the row among those that are bound.
fn store(s: u32, n: u32, c: u32, first_row: u32, cols: u32, at: u32, sum: f32) {
    let segment = p.segments[s];
    var mine = at < segment.n && c < cols;
//#if EXPERTS == 1
    mine = mine && n < p.expert_rows;
//#end
    if (mine) {
        var y = sum;
        if (segment.bias_at != NONE) {
            y = y + elements[segment.bias_at + n];
        }
        arena[segment.out_at + (first_row + c) * segment.out_stride + n] = y;
    }
}

//#if INTEGER == 1
fn add_block(q: Codes, s: vec3<f32>, a0: vec4<u32>, a1: vec4<u32>, m: vec2<u32>, sum: f32) -> f32 {
    let first = dot4I8Packed(q.first.x, a0.x) + dot4I8Packed(q.first.y, a0.y)
        + dot4I8Packed(q.first.z, a0.z) + dot4I8Packed(q.first.w, a0.w);
    let second = dot4I8Packed(q.second.x, a1.x) + dot4I8Packed(q.second.y, a1.y)
        + dot4I8Packed(q.second.z, a1.z) + dot4I8Packed(q.second.w, a1.w);
    let sums_ = vec2<i32>(extractBits(bitcast<i32>(m.y), 0u, 16u), extractBits(bitcast<i32>(m.y), 16u, 16u));
    let i = vec2<i32>(first, second) - i32(OFFSET) * sums_;
//#if HIGH == 2
    let product = fma(s.x, f32(i.x), s.y * f32(i.y));
//#end
//#if HIGH != 2
//#if MINIMUM == 1
    let product = fma(s.x, f32(i.x + i.y), s.z * f32(sums_.x + sums_.y));
//#end
//#if MINIMUM == 0
    let product = s.x * f32(i.x + i.y);
//#end
//#end
    return fma(bitcast<f32>(m.x), product, sum);
}
//#end
