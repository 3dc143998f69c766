// Attention of a row's query head over a split of SPLIT keys: scores a key a lane, then values a dimension a lane, the
// keys in order. With LOOP, a workgroup walks all splits of its row and merges them as it goes; otherwise each split is a
// workgroup, which leaves its part in `parts`, and merge.wgsl merges them: the same operations in the same order.

struct Params {
    rows: u32, bound: u32, per: u32, heads: u32, group: u32, blocks: u32, table: u32, splits: u32,
    q_at: u32, q_stride: u32, out_at: u32, out_stride: u32,
    pos_at: u32, until_at: u32, seq_at: u32, pages_at: u32,
    scale: f32, window: u32, softcap: f32, has_softcap: u32,
}

const LANES: u32 = 64u;

var<workgroup> query: array<f32, DK>;
var<workgroup> scores: array<f32, SPLIT>;
// Where the rows of the split's keys lie.
var<workgroup> places: array<u32, SPLIT>;
var<workgroup> reduced: array<f32, LANES>;
var<workgroup> range_: vec2<u32>;

//#if HALF == 1
fn key_pair(at: u32, i: u32) -> vec2<f32> {
    let w = kv[at + i];
    return vec2<f32>(half_(w & 0xffffu), half_(w >> 16u));
}
//#end

fn score(at: u32) -> f32 {
    var sum = 0.0;
//#if HALF == 0
    for (var d = 0u; d < DK; d++) {
        sum = fma(query[d], bitcast<f32>(kv[at + d]), sum);
    }
    sum = sum * p.scale;
//#end
//#if HALF == 1
    var d = 0u;
    for (; d + 8u <= DK / 2u; d += 8u) {
//#for j in 8
        let k_${j} = key_pair(at, d + ${j}u);
//#end
//#for j in 8
        sum = fma(query[2u * (d + ${j}u)], k_${j}.x, sum);
        sum = fma(query[2u * (d + ${j}u) + 1u], k_${j}.y, sum);
//#end
    }
    for (; d < DK / 2u; d++) {
        let k = key_pair(at, d);
        sum = fma(query[2u * d], k.x, sum);
        sum = fma(query[2u * d + 1u], k.y, sum);
    }
    if (DK % 2u == 1u) {
        sum = fma(query[DK - 1u], key_pair(at, DK / 2u).x, sum);
    }
    sum = sum * bitcast<f32>(kv[at + ROW - 2u]) * p.scale;
//#end
    if (p.has_softcap != 0u) {
        sum = p.softcap * tanh_(sum / p.softcap);
    }
    return sum;
}

fn value(at: u32, d: u32) -> f32 {
//#if HALF == 0
    return bitcast<f32>(kv[at + K_WORDS + d]);
//#end
//#if HALF == 1
    return half_((kv[at + K_WORDS + d / 2u] >> (16u * (d % 2u))) & 0xffffu);
//#end
}

struct Part { top: f32, sum: f32, values: array<f32, STEPS> }

// The split's largest score, sum of exponentials and weighted values; keys first..until, which is not empty.
fn attend(pages: u32, head: u32, start: u32, first: u32, until: u32, lane: u32) -> Part {
    var top = -infinity();
    for (var key = first + lane; key < until; key += LANES) {
        let at = kv_row(pages, p.blocks, head, key);
        places[key - start] = at;
        let s = score(at);
        scores[key - start] = s;
        top = max(top, s);
    }
    reduced[lane] = top;
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        if (lane < half_) {
            reduced[lane] = max(reduced[lane], reduced[lane + half_]);
        }
    }
    workgroupBarrier();
    top = reduced[0];
    workgroupBarrier();
    // By the key's absolute place, so that the sum's order does not depend on where the visible keys begin.
    var sum = 0.0;
    for (var key = start + lane; key < until; key += LANES) {
        if (key >= first) {
            let e = exp_(scores[key - start] - top);
            sum = sum + e;
//#if HALF == 1
            scores[key - start] = e * bitcast<f32>(kv[places[key - start] + ROW - 1u]);
//#end
//#if HALF == 0
            scores[key - start] = e;
//#end
        }
    }
    reduced[lane] = sum;
    for (var half_ = LANES / 2u; half_ > 0u; half_ = half_ / 2u) {
        workgroupBarrier();
        if (lane < half_) {
            reduced[lane] = reduced[lane] + reduced[lane + half_];
        }
    }
    workgroupBarrier();
    var out: Part;
    out.top = top;
    out.sum = reduced[0];
//#for i in STEPS
    var v_${i} = 0.0;
//#end
    // Eight at a time, so that their loads are under way together; the sums are in order all the same.
    var key = first - start;
    for (; key + 8u <= until - start; key += 8u) {
//#for i in STEPS
        {
            let d = min(lane + LANES * ${i}u, DV - 1u);
//#for j in 8
            let x_${j} = value(places[key + ${j}u], d);
//#end
//#for j in 8
            v_${i} = fma(scores[key + ${j}u], x_${j}, v_${i});
//#end
        }
//#end
    }
    for (; key < until - start; key++) {
//#for i in STEPS
        v_${i} = fma(scores[key], value(places[key], min(lane + LANES * ${i}u, DV - 1u)), v_${i});
//#end
    }
//#for i in STEPS
    out.values[${i}] = v_${i};
//#end
    workgroupBarrier();
    return out;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = group.z; row < rows; row += grid.z) {
        let q = group.y;
        let head = q / p.group;
        if (lane == 0u) {
            let past = word(p.pos_at + row) + 1u;
            range_ = vec2<u32>(past - min(past, p.window), word(p.until_at + row));
        }
        for (var d = lane; d < DK; d += LANES) {
            query[d] = arena[p.q_at + row * p.q_stride + q * DK + d];
        }
        let range = workgroupUniformLoad(&range_);
        let pages = p.pages_at + word(p.seq_at + row) * p.table;
//#if LOOP == 1
        let to = p.out_at + row * p.out_stride + q * DV;
        if (range.x >= range.y) {
            for (var d = lane; d < DV; d += LANES) {
                arena[to + d] = 0.0;
            }
            continue;
        }
        let from_ = range.x / SPLIT;
        let end = (range.y + SPLIT - 1u) / SPLIT;
        var total = attend(pages, head, from_ * SPLIT, range.x, min(range.y, (from_ + 1u) * SPLIT), lane);
        for (var split = from_ + 1u; split < end; split++) {
            let start = split * SPLIT;
            let part = attend(pages, head, start, start, min(range.y, start + SPLIT), lane);
            let weights = merge_weights(total.top, part.top);
            total.top = max(total.top, part.top);
            total.sum = fma(total.sum, weights.x, part.sum * weights.y);
//#for i in STEPS
            total.values[${i}] = fma(total.values[${i}], weights.x, part.values[${i}] * weights.y);
//#end
        }
//#for i in STEPS
        if (lane + LANES * ${i}u < DV) {
            arena[to + lane + LANES * ${i}u] = total.values[${i}] / total.sum;
        }
//#end
//#end
//#if LOOP == 0
        let start = group.x * SPLIT;
        let first = max(range.x, start);
        let until = min(range.y, start + SPLIT);
        if (first >= until) {
            continue;
        }
        let part = attend(pages, head, start, first, until, lane);
        let to = ((row * p.heads + q) * p.splits + group.x) * (DV + 2u);
        if (lane == 0u) {
            parts[to] = part.top;
            parts[to + 1u] = part.sum;
        }
//#for i in STEPS
        if (lane + LANES * ${i}u < DV) {
            parts[to + 2u + lane + LANES * ${i}u] = part.values[${i}];
        }
//#end
//#end
    }
}
