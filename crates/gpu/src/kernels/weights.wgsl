// Reading packed weights (see pack.rs). `w4` and `w1` are the same buffer as vectors and as words. With PARTS = 2 a matrix
// has a partner in `up4` and `up1`; `part`, a constant where a function is called, says which is meant. HIGH: bits above
// the low four; BITS: 4 or 8 for codes, 16, 17 (bfloat16) or 32 for elements; SCALES: 0 none, 1 half, 2 half pair, 3
// super; OFFSET: what is subtracted from a code; MINIMUM: whether something is added to the products.

fn packed4(part: u32, at: u32) -> vec4<u32> {
//#if PARTS == 2
    if (part == 1u) {
        return up4[at];
    }
//#end
    return w4[at];
}

fn packed1(part: u32, at: u32) -> u32 {
//#if PARTS == 2
    if (part == 1u) {
        return up1[at];
    }
//#end
    return w1[at];
}

// Scale of the block's first and second half, and what is added to the products.
fn block_scales(part: u32, row: u32, b: u32) -> vec3<f32> {
//#if SCALES == 0
    return vec3<f32>(1.0, 1.0, 0.0);
//#end
//#if SCALES == 1
    let d = half_((packed1(part, row + b / 2u) >> (16u * (b % 2u))) & 0xffffu);
    return vec3<f32>(d, d, 0.0);
//#end
//#if SCALES == 2
    let pair = packed1(part, row + b);
    let d = half_(pair & 0xffffu);
    return vec3<f32>(d, d, half_(pair >> 16u));
//#end
//#if SCALES == 3
    let at = row + b / 8u * 5u;
    let whole = packed1(part, at);
    let own = packed1(part, at + 1u + (b % 8u) / 2u) >> (16u * (b % 2u));
    let d = half_(whole & 0xffffu);
//#if HIGH == 2
    let first = f32(extractBits(bitcast<i32>(own), 0u, 8u));
    let second = f32(extractBits(bitcast<i32>(own), 8u, 8u));
    return vec3<f32>(d * first, d * second, 0.0);
//#end
//#if HIGH != 2
    let scale = d * f32(own & 255u);
    return vec3<f32>(scale, scale, -(half_(whole >> 16u) * f32((own >> 8u) & 255u)));
//#end
//#end
}

// The codes of a block as eight words of four bytes.
struct Codes { first: vec4<u32>, second: vec4<u32> }

fn block_codes(part: u32, codes_row: u32, high_row: u32, b: u32) -> Codes {
    var out: Codes;
//#if BITS == 8
    out.first = packed4(part, codes_row + 2u * b);
    out.second = packed4(part, codes_row + 2u * b + 1u);
//#end
//#if BITS == 4
    let c = packed4(part, codes_row + b);
    let low = c & vec4<u32>(0x0f0f0f0fu);
    let top = (c >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    out.first = vec4<u32>(low.x, top.x, low.y, top.y);
    out.second = vec4<u32>(low.z, top.z, low.w, top.w);
//#if HIGH == 1
    let h = vec4<u32>(packed1(part, high_row + b));
    out.first |= ((h >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
    out.second |= ((h >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
//#end
//#if HIGH == 2
    let h0 = vec4<u32>(packed1(part, high_row + 2u * b));
    let h1 = vec4<u32>(packed1(part, high_row + 2u * b + 1u));
    out.first |= ((h0 >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
    out.second |= ((h1 >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
//#end
//#end
    return out;
}

fn bytes(word: u32) -> vec4<f32> {
//#if BITS == 8
    let q = bitcast<i32>(word);
    return vec4<f32>(vec4<i32>(
        extractBits(q, 0u, 8u), extractBits(q, 8u, 8u), extractBits(q, 16u, 8u), extractBits(q, 24u, 8u)));
//#end
//#if BITS != 8
    let q = vec4<u32>(word & 255u, (word >> 8u) & 255u, (word >> 16u) & 255u, word >> 24u);
    return vec4<f32>(vec4<i32>(q) - vec4<i32>(i32(OFFSET)));
//#end
}

// Elements of plain types.
fn pair(word: u32) -> vec2<f32> {
//#if BITS == 17
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
//#end
//#if BITS != 17
    return vec2<f32>(half_(word & 0xffffu), half_(word >> 16u));
//#end
}

// A block's elements, exactly, in eight vectors.
fn block_elements(part: u32, codes_row: u32, high_row: u32, scale_row: u32, b: u32) -> array<vec4<f32>, 8> {
    var out: array<vec4<f32>, 8>;
//#if BITS == 32
//#for i in 8
    out[${i}] = bitcast<vec4<f32>>(packed4(part, codes_row + 8u * b + ${i}u));
//#end
//#end
//#if BITS == 16
//#for i in 4
    { let w = packed4(part, codes_row + 4u * b + ${i}u);
      out[2 * ${i}] = vec4<f32>(pair(w.x), pair(w.y));
      out[2 * ${i} + 1] = vec4<f32>(pair(w.z), pair(w.w)); }
//#end
//#end
//#if BITS == 17
//#for i in 4
    { let w = packed4(part, codes_row + 4u * b + ${i}u);
      out[2 * ${i}] = vec4<f32>(pair(w.x), pair(w.y));
      out[2 * ${i} + 1] = vec4<f32>(pair(w.z), pair(w.w)); }
//#end
//#end
//#if SCALES != 0
    let s = block_scales(part, scale_row, b);
    let c = block_codes(part, codes_row, high_row, b);
//#for i in 4
    out[${i}] = fma(vec4<f32>(s.x), bytes(c.first[${i}]), vec4<f32>(s.z));
    out[4 + ${i}] = fma(vec4<f32>(s.y), bytes(c.second[${i}]), vec4<f32>(s.z));
//#end
//#end
    return out;
}
