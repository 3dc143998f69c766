// The sum of one number of each lane of a workgroup, in an order that LANES alone decides. A barrier must follow before the next.

var<workgroup> sums: array<f32, LANES>;

fn total(x: f32, lane: u32) -> f32 {
    sums[lane] = x;
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        if (lane < half_) {
            sums[lane] = sums[lane] + sums[lane + half_];
        }
    }
    workgroupBarrier();
    return sums[0];
}
