// One row a lane: softmax over all logits, the k largest, ties to the lower id. A row that holds NaN or nothing finite is
// marked in `status` and gets the first experts.

struct Params {
    rows: u32, bound: u32, per: u32, experts: u32, k: u32, renormalise: u32,
    logits_at: u32, logits_stride: u32, weights_at: u32, weights_stride: u32, ids_at: u32, ids_stride: u32, status_at: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = id.x; row < rows; row += 64u * grid.x) {
        let from_ = p.logits_at + row * p.logits_stride;
        var top = -infinity();
        var bad = false;
        for (var e = 0u; e < p.experts; e++) {
            let bits = bitcast<u32>(arena[from_ + e]);
            bad = bad || (bits & 0x7fffffffu) > 0x7f800000u;
            top = max(top, arena[from_ + e]);
        }
        if (bad || !is_finite(top)) {
            arena[p.status_at + row] = 1.0;
            for (var slot = 0u; slot < p.k; slot++) {
                arena[p.weights_at + row * p.weights_stride + slot] = 0.0;
                arena[p.ids_at + row * p.ids_stride + slot] = bitcast<f32>(0u);
            }
            continue;
        }
        var sum = 0.0;
        for (var e = 0u; e < p.experts; e++) {
            sum = sum + exp_(arena[from_ + e] - top);
        }
        var last = infinity();
        var last_id = NONE;
        var chosen = 0.0;
        for (var slot = 0u; slot < p.k; slot++) {
            var best = -infinity();
            var best_id = NONE;
            for (var e = 0u; e < p.experts; e++) {
                let l = arena[from_ + e];
                let later = l < last || (l == last && (last_id == NONE || e > last_id));
                if (later && (best_id == NONE || l > best)) {
                    best = l;
                    best_id = e;
                }
            }
            last = best;
            last_id = best_id;
            let w = exp_(best - top) / sum;
            chosen = chosen + w;
            arena[p.weights_at + row * p.weights_stride + slot] = w;
            arena[p.ids_at + row * p.ids_stride + slot] = bitcast<f32>(best_id);
        }
        if (p.renormalise != 0u) {
            for (var slot = 0u; slot < p.k; slot++) {
                let at = p.weights_at + row * p.weights_stride + slot;
                arena[at] = arena[at] / chosen;
            }
        }
    }
}
