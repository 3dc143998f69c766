// 32 elements as 8-bit codes. `meta_` has for each block its scale, and the sums of the codes of its halves.
fn quantise_block(from_: u32, block: u32) {
    // Magnitudes compare as integers, where infinities and NaN lie above every finite value.
    var largest = 0u;
    for (var i = 0u; i < 32u; i++) {
        largest = max(largest, bitcast<u32>(arena[from_ + i]) & 0x7fffffffu);
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
    var sums = vec2<i32>(0, 0);
//#for h in 2
    {
        var words = vec4<u32>(0u);
//#for w in 4
        {
            let at = from_ + ${h}u * 16u + ${w}u * 4u;
            let x = vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
            let q = clamp(vec4<i32>(round(x * inverse)), vec4<i32>(-127), vec4<i32>(127));
            sums[${h}] += q.x + q.y + q.z + q.w;
            let c = bitcast<vec4<u32>>(q) & vec4<u32>(255u);
            words[${w}] = c.x | (c.y << 8u) | (c.z << 16u) | (c.w << 24u);
        }
//#end
        acts[2u * block + ${h}u] = words;
    }
//#end
    meta_[block] = vec2<u32>(bitcast<u32>(scale), (bitcast<u32>(sums.x) & 0xffffu) | (bitcast<u32>(sums.y) << 16u));
}
