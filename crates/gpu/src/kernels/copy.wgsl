// Copies one buffer to another, 16 bytes a lane and turn.

struct Params { count: u32, stride: u32 }

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var i = id.x; i < p.count; i += p.stride) {
        to[i] = from_[i];
    }
}
