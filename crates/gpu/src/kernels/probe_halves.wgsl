// Counts the binary16 numbers that `unpack2x16float` does not give exactly; NaN may be any.

struct Params { unused: u32 }

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var wrong = 0u;
    for (var bits = id.x; bits < 65536u; bits += 1024u) {
        let special = (bits & 0x7c00u) == 0x7c00u && (bits & 0x3ffu) != 0u;
        let low = bitcast<u32>(unpack2x16float(bits).x);
        let top = bitcast<u32>(unpack2x16float(bits << 16u).y);
        let want = bitcast<u32>(half(bits));
        if (!special && (low != want || top != want)) {
            wrong += 1u;
        }
    }
    arena[id.x] = bitcast<f32>(wrong + 1u);
}
