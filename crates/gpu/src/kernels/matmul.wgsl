// Tiles of ROWS rows of weights by COLS rows of activations. LANES lanes share a tile: they take blocks of the inner
// dimension, LANES apart, and their sums are added in a tree. The order of every sum depends on the inner dimension
// alone, so that any ROWS, COLS and UNROLL give the same bits. INTEGER: activations are 8-bit codes. EXPERTS: each row
// has an expert of its own, whose matrix follows those before it. SUBGROUP: the lanes of a tile are a subgroup, and SUBS of
// them a workgroup; otherwise they are a workgroup. SEGMENTS: matrices of one type with the same input, in one buffer.
// PARTS = 2: a tile has the same rows of two matrices, gate and up, and their results are combined by `apply`.

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
var<workgroup> sums: array<f32, LANES * PARTS * ROWS * COLS>;

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
//#for g in PARTS
//#for r in ROWS
//#for c in COLS
    var sum_${g}_${r}_${c} = 0.0;
//#end
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
//#for g in PARTS
    let codes_${g}_${r} = p.segments[s + ${g}u].codes_at + w_${r} * p.codes_row;
    let high_${g}_${r} = p.segments[s + ${g}u].high_at + w_${r} * p.high_row;
    let scale_${g}_${r} = p.segments[s + ${g}u].scale_at + w_${r} * p.scale_row;
//#end
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
//#for g in PARTS
//#for r in ROWS
        let q_${u}_${g}_${r} = block_codes(${g}u, codes_${g}_${r}, high_${g}_${r}, b + ${u}u * LANES);
        let s_${u}_${g}_${r} = block_scales(${g}u, scale_${g}_${r}, b + ${u}u * LANES);
//#end
//#end
//#end
//#for u in UNROLL
//#for c in COLS
        {
            let at = x_${c} * p.blocks + b + ${u}u * LANES;
            let a0 = acts[2u * at];
            let a1 = acts[2u * at + 1u];
            let m = meta_[at];
//#for g in PARTS
//#for r in ROWS
            sum_${g}_${r}_${c} = add_block(q_${u}_${g}_${r}, s_${u}_${g}_${r}, a0, a1, m, sum_${g}_${r}_${c});
//#end
//#end
        }
//#end
//#end
    }
//#end
    for (; b < p.blocks; b += LANES) {
//#for g in PARTS
//#for r in ROWS
        let q_${g}_${r} = block_codes(${g}u, codes_${g}_${r}, high_${g}_${r}, b);
        let s_${g}_${r} = block_scales(${g}u, scale_${g}_${r}, b);
//#end
//#end
//#for c in COLS
        {
            let at = x_${c} * p.blocks + b;
            let a0 = acts[2u * at];
            let a1 = acts[2u * at + 1u];
            let m = meta_[at];
//#for g in PARTS
//#for r in ROWS
            sum_${g}_${r}_${c} = add_block(q_${g}_${r}, s_${g}_${r}, a0, a1, m, sum_${g}_${r}_${c});
//#end
//#end
        }
//#end
    }
//#end
//#if INTEGER == 0
    for (; b < p.blocks; b += LANES) {
        // Beyond k, weights are zeros and activations somebody else's.
        let left = p.k - 32u * b;
//#for g in PARTS
//#for r in ROWS
        let w_${g}_${r} = block_elements(${g}u, codes_${g}_${r}, high_${g}_${r}, scale_${g}_${r}, b);
//#end
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
//#for g in PARTS
//#for r in ROWS
                {
                    let w = w_${g}_${r}[i];
                    sum_${g}_${r}_${c} =
                        fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum_${g}_${r}_${c}))));
                }
//#end
//#end
            }
        }
//#end
    }
//#end
//#if SUBGROUP == 1
//#for r in ROWS
//#for c in COLS
//#for g in PARTS
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        sum_${g}_${r}_${c} = sum_${g}_${r}_${c} + subgroupShuffleXor(sum_${g}_${r}_${c}, half_);
    }
//#end
    if (lane == (${r}u * COLS + ${c}u) % LANES) {
//#if EXPERTS == 0
        let at = n0 + ${r}u;
//#end
//#if EXPERTS == 1
        let at = base + n0 + ${r}u;
//#end
        if (holds(s, n0 + ${r}u, at, ${c}u < cols)) {
//#if PARTS == 1
            let y = biased(s, n0 + ${r}u, sum_0_${r}_${c});
//#end
//#if PARTS == 2
            let y = apply(sum_0_${r}_${c}, sum_1_${r}_${c});
//#end
            arena[segment.out_at + (first_row + ${c}u) * segment.out_stride + n0 + ${r}u] = y;
        }
    }
//#end
//#end
//#end
//#if SUBGROUP == 0
//#for g in PARTS
//#for r in ROWS
//#for c in COLS
    sums[((${g}u * ROWS + ${r}u) * COLS + ${c}u) * LANES + lane] = sum_${g}_${r}_${c};
//#end
//#end
//#end
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        for (var i = lane; i < PARTS * ROWS * COLS * half_; i += LANES) {
            let at = i / half_ * LANES + i % half_;
            sums[at] = sums[at] + sums[at + half_];
        }
    }
    workgroupBarrier();
    for (var i = lane; i < ROWS * COLS; i += LANES) {
        let n = n0 + i / COLS;
//#if EXPERTS == 0
        let at = n;
//#end
//#if EXPERTS == 1
        let at = base + n;
//#end
        if (holds(s, n, at, i % COLS < cols)) {
//#if PARTS == 1
            let y = biased(s, n, sums[i * LANES]);
//#end
//#if PARTS == 2
            let y = apply(sums[i * LANES], sums[(ROWS * COLS + i) * LANES]);
//#end
            arena[segment.out_at + (first_row + i % COLS) * segment.out_stride + n] = y;
        }
    }
    workgroupBarrier();
//#end
}

// Whether row `n` of a matrix, which is row `at` of those that are bound, is there, for a column that is `real`.
fn holds(s: u32, n: u32, at: u32, real: bool) -> bool {
    var mine = at < p.segments[s].n && real;
//#if EXPERTS == 1
    mine = mine && n < p.expert_rows;
//#end
    return mine;
}

//#if PARTS == 1
fn biased(s: u32, n: u32, y: f32) -> f32 {
    if (p.segments[s].bias_at != NONE) {
        return y + elements[p.segments[s].bias_at + n];
    }
    return y;
}
//#end

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
