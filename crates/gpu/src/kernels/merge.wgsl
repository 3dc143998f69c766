// Adds the parts of a row's splits, in order. One dimension a lane.

struct Params {
    rows: u32, bound: u32, per: u32, heads: u32, splits: u32, out_at: u32, out_stride: u32,
    pos_at: u32, until_at: u32, window: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let d = id.x;
    let q = id.y;
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.z; row < rows; row += grid.z) {
        let past = word(p.pos_at + row) + 1u;
        let first = past - min(past, p.window);
        let until = word(p.until_at + row);
        if (d >= DV) {
            continue;
        }
        let to = p.out_at + row * p.out_stride + q * DV + d;
        if (first >= until) {
            arena[to] = 0.0;
            continue;
        }
        let from_ = first / SPLIT;
        let end = (until + SPLIT - 1u) / SPLIT;
        var at = ((row * p.heads + q) * p.splits + from_) * (DV + 2u);
        var top = parts[at];
        var sum = parts[at + 1u];
        var value = parts[at + 2u + d];
        for (var split = from_ + 1u; split < end; split++) {
            at += DV + 2u;
            let weights = merge_weights(top, parts[at]);
            top = max(top, parts[at]);
            sum = fma(sum, weights.x, parts[at + 1u] * weights.y);
            value = fma(value, weights.x, parts[at + 2u + d] * weights.y);
        }
        arena[to] = value / sum;
    }
}
