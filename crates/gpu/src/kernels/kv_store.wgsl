// Storing a row of keys or values, which the workgroup has left in `row_values` behind a barrier.

var<workgroup> row_values: array<f32, WIDE>;

//#if HALF == 1
var<workgroup> largest: array<u32, LANES>;

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
fn exponent_of(n: u32, lane: u32) -> i32 {
    var most = 0u;
    for (var i = lane; i < n; i += LANES) {
        most = max(most, bitcast<u32>(row_values[i]) & 0x7fffffffu);
    }
    workgroupBarrier();
    largest[lane] = most;
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        if (lane < half_) {
            largest[lane] = max(largest[lane], largest[lane + half_]);
        }
    }
    workgroupBarrier();
    return min(14 + 127 - i32(largest[0] >> 23u), 126);
}

fn store_row(n: u32, to: u32, factor_at: u32, lane: u32) {
    let e = exponent_of(n, lane);
    for (var i = lane; i < (n + 1u) / 2u; i += LANES) {
        var packed = to_half(row_values[2u * i] * power(e));
        if (2u * i + 1u < n) {
            packed |= to_half(row_values[2u * i + 1u] * power(e)) << 16u;
        }
        kv[to + i] = packed;
    }
    if (lane == 0u) {
        kv[factor_at] = bitcast<u32>(power(-e));
    }
}
//#end
//#if HALF == 0
fn store_row(n: u32, to: u32, factor_at: u32, lane: u32) {
    for (var i = lane; i < n; i += LANES) {
        kv[to + i] = bitcast<u32>(row_values[i]);
    }
}
//#end
