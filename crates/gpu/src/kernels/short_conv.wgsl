// One channel of one sequence a lane, its rows in order. `ring` is [slots, TAPS - 1, width], oldest first.

struct Params {
    seqs: u32, bound: u32, per: u32, width: u32,
    x_at: u32, x_stride: u32, out_at: u32, out_stride: u32, weight_at: u32,
    pos_at: u32, start_at: u32, extents_at: u32, slots_at: u32, snap_at: u32,
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>) {
    let seqs = bounded(p.seqs, p.bound, p.per);
    let d = id.x;
    if (d >= p.width) {
        return;
    }
    for (var seq = id.y; seq < seqs; seq += grid.y) {
        let extent = word(p.extents_at + seq);
        if (extent == 0u) {
            continue;
        }
        let start = word(p.start_at + seq);
        let fresh = word(p.pos_at + start) == 0u;
        let slot = word(p.slots_at + seq);
        var past: array<f32, ROOM>;
//#for i in PAST
        if (!fresh) {
            past[${i}] = ring[(slot * PAST + ${i}u) * p.width + d];
        }
//#end
        for (var row = start; row < start + extent; row++) {
            var sum = 0.0;
//#for i in PAST
            sum = fma(elements[p.weight_at + d * (PAST + 1u) + ${i}u], past[${i}], sum);
//#end
            let x = arena[p.x_at + row * p.x_stride + d];
            arena[p.out_at + row * p.out_stride + d] = fma(elements[p.weight_at + d * (PAST + 1u) + PAST], x, sum);
            let old = past;
//#for i in SHIFTS
            past[${i}] = old[${i} + 1];
//#end
//#if PAST != 0
            past[PAST - 1u] = x;
//#end
            let to = word(p.snap_at + row);
            if (to != NONE) {
//#for i in PAST
                ring[(to * PAST + ${i}u) * p.width + d] = past[${i}];
//#end
            }
        }
    }
}
