// A tile of ROWS rows of weights by COLS rows of activations for each workgroup; lanes take blocks of the inner
// dimension, LANES apart, and their sums are added in a tree. The order of every sum depends on the inner dimension
// alone, so that any COLS give the same bits. INTEGER: activations are 8-bit codes. EXPERTS: each row of `pairs` has an
// expert of its own, whose matrix follows those before it.

struct Params {
    rows: u32, bound: u32, per: u32, n: u32, blocks: u32, k: u32,
    x_at: u32, x_stride: u32, out_at: u32, out_stride: u32,
    codes_at: u32, high_at: u32, scale_at: u32, codes_row: u32, high_row: u32, scale_row: u32,
    bias_at: u32,
    // Experts: ids, rows of a matrix, first row of the chunk that is bound, and how many pairs share a row of x.
    ids_at: u32, expert_rows: u32, first: u32, share: u32, experts: u32,
}

var<workgroup> sums: array<f32, LANES * ROWS * COLS>;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
//#if EXPERTS == 0
    let tiles = (p.n + ROWS - 1u) / ROWS;
//#end
//#if EXPERTS == 1
    let tiles = (p.expert_rows + ROWS - 1u) / ROWS;
//#end
    for (var first_row = group.y * COLS; first_row < rows; first_row += grid.y * COLS) {
        for (var t = group.x; t < tiles; t += grid.x) {
            tile(t * ROWS, first_row, min(COLS, rows - first_row), lane);
        }
    }
}

fn tile(n0: u32, first_row: u32, cols: u32, lane: u32) {
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
    let w_${r} = min(n0 + ${r}u, p.n - 1u);
//#end
//#if EXPERTS == 1
    let w_${r} = min(base + n0 + ${r}u, p.n - 1u);
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
    for (var b = lane; b < p.blocks; b += LANES) {
//#if INTEGER == 1
//#for c in COLS
        let a_${c} = acts[2u * (x_${c} * p.blocks + b)];
        let b_${c} = acts[2u * (x_${c} * p.blocks + b) + 1u];
        let m_${c} = meta_[x_${c} * p.blocks + b];
        let s_${c} = vec2<i32>(extractBits(bitcast<i32>(m_${c}.y), 0u, 16u), extractBits(bitcast<i32>(m_${c}.y), 16u, 16u));
        let scale_${c} = bitcast<f32>(m_${c}.x);
//#end
//#for r in ROWS
        {
            let q = block_codes(p.codes_at + w_${r} * p.codes_row, p.high_at + w_${r} * p.high_row, b);
            let s = block_scales(p.scale_at + w_${r} * p.scale_row, b);
//#for c in COLS
            {
                let first = dot4I8Packed(q.first.x, a_${c}.x) + dot4I8Packed(q.first.y, a_${c}.y)
                    + dot4I8Packed(q.first.z, a_${c}.z) + dot4I8Packed(q.first.w, a_${c}.w);
                let second = dot4I8Packed(q.second.x, b_${c}.x) + dot4I8Packed(q.second.y, b_${c}.y)
                    + dot4I8Packed(q.second.z, b_${c}.z) + dot4I8Packed(q.second.w, b_${c}.w);
                let i = vec2<i32>(first, second) - i32(OFFSET) * s_${c};
//#if HIGH == 2
                let product = fma(s.x, f32(i.x), s.y * f32(i.y));
//#end
//#if HIGH != 2
                let product = fma(s.x, f32(i.x + i.y), s.z * f32(s_${c}.x + s_${c}.y));
//#end
                sum_${r}_${c} = fma(scale_${c}, product, sum_${r}_${c});
            }
//#end
        }
//#end
//#end
//#if INTEGER == 0
        // Beyond k, weights are zeros and activations somebody else's.
        let left = p.k - 32u * b;
//#for r in ROWS
        let w_${r}_ = block_elements(p.codes_at + w_${r} * p.codes_row, p.high_at + w_${r} * p.high_row,
            p.scale_at + w_${r} * p.scale_row, b);
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
//#end
    }
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
        let c = i % COLS;
//#if EXPERTS == 0
        let mine = n < p.n;
//#end
//#if EXPERTS == 1
        let mine = n < p.expert_rows && base + n < p.n;
//#end
        if (mine && c < cols) {
            var y = sums[i * LANES];
            if (p.bias_at != NONE) {
                y = y + elements[p.bias_at + n];
            }
            arena[p.out_at + (first_row + c) * p.out_stride + n] = y;
        }
    }
    workgroupBarrier();
}
