// Blocks of 32 elements as 8-bit codes; eight lanes share a block. `meta_` has for each block its scale, and the sums of the
// codes of its halves.

var<workgroup> block_max: array<u32, LANES>;
var<workgroup> block_sum: array<i32, LANES>;

// The blocks `first` to `first + LANES / 8` of the `count` of a row that starts at `from_`; `to`: the row's first block.
// Called by every lane of the workgroup.
fn quantise_blocks(from_: u32, to: u32, first: u32, count: u32, lane: u32) {
    let b = first + lane / 8u;
    let i = lane % 8u;
    let lead = lane - i;
    var x = vec4<f32>(0.0);
    if (b < count) {
        let at = from_ + 32u * b + 4u * i;
        x = vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
    }
    // Magnitudes compare as integers, where infinities and NaN lie above every finite value.
    let sizes = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    block_max[lane] = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    workgroupBarrier();
    var largest = 0u;
    for (var j = 0u; j < 8u; j++) {
        largest = max(largest, block_max[lead + j]);
    }
    var inverse = 0.0;
    var scale = 0.0;
    if (largest >= 0x7f800000u) {
        scale = not_a_number();
    } else if (largest >= (27u << 23u)) {
        // Smaller blocks become zeros: the reciprocal could overflow.
        let amax = bitcast<f32>(largest);
        scale = amax / 127.0;
        inverse = 127.0 / amax;
    }
    var q = clamp(vec4<i32>(round(x * inverse)), vec4<i32>(-127), vec4<i32>(127));
    if (largest >= 0x7f800000u) {
        q = vec4<i32>(0);
    }
    block_sum[lane] = q.x + q.y + q.z + q.w;
    workgroupBarrier();
    if (b < count) {
        let c = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
        acts[2u * (to + b) + i / 4u][i % 4u] = c.x | (c.y << 8u) | (c.z << 16u) | (c.w << 24u);
        if (i == 0u) {
            let low = block_sum[lead] + block_sum[lead + 1u] + block_sum[lead + 2u] + block_sum[lead + 3u];
            let high = block_sum[lead + 4u] + block_sum[lead + 5u] + block_sum[lead + 6u] + block_sum[lead + 7u];
            let sums_ = (bitcast<u32>(low) & 0xffffu) | (bitcast<u32>(high) << 16u);
            meta_[to + b] = vec2<u32>(bitcast<u32>(scale), sums_);
        }
    }
    workgroupBarrier();
}
