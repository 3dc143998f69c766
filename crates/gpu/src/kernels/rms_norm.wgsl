// A workgroup for each row; `inner` rows follow one another at each step of the stride. With ADD, the
// row is the sum of two, which is stored too; with QUANTISE, its codes are left as quantise.wgsl leaves them.

struct Params {
    rows: u32, bound: u32, per: u32, width: u32,
    x_at: u32, x_stride: u32, y_at: u32, y_stride: u32,
    sum_at: u32, sum_stride: u32, out_at: u32, out_stride: u32,
    weight_at: u32, eps: f32, inner: u32,
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = group.x; row < rows; row += grid.x) {
        let outer = row / p.inner;
        let within = row % p.inner * p.width;
        let x_at = p.x_at + outer * p.x_stride + within;
        let out_at = p.out_at + outer * p.out_stride + within;
//#if ADD == 1
        let y_at = p.y_at + outer * p.y_stride + within;
        let sum_at = p.sum_at + outer * p.sum_stride + within;
//#end
        var sum = 0.0;
        for (var i = lane; i < p.width; i += LANES) {
            var x = arena[x_at + i];
//#if ADD == 1
            x = x + arena[y_at + i];
            arena[sum_at + i] = x;
//#end
            sum = fma(x, x, sum);
        }
        let scale = 1.0 / sqrt(total(sum, lane) / f32(p.width) + p.eps);
        for (var i = lane; i < p.width; i += LANES) {
//#if ADD == 1
            let x = arena[sum_at + i];
//#end
//#if ADD == 0
            let x = arena[x_at + i];
//#end
            // In this order: a device that flushes subnormals must not lose a product that the gain makes large again.
            arena[out_at + i] = x * (scale * elements[p.weight_at + i]);
        }
//#if QUANTISE == 1
        storageBarrier();
        workgroupBarrier();
        for (var b = 0u; b < p.width / 32u; b += LANES / 8u) {
            quantise_blocks(out_at, row * (p.width / 32u), b, p.width / 32u, lane);
        }
//#end
        workgroupBarrier();
    }
}
