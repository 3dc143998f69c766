// What sums of two splits are multiplied with when they are added.
fn merge_weights(a: f32, b: f32) -> vec2<f32> {
    let top = max(a, b);
    return vec2<f32>(exp_(a - top), exp_(b - top));
}
