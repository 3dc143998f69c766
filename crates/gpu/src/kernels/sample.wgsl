// A workgroup for each row of logits: the token that tensor::sampling draws, in the same integers. Passes over the row count
// tokens, or add up weights, above thresholds; the cuts of top-k and top-p are found two bits at a time. Sums are 64-bit
// (low, high). What decides control flow around a barrier comes from workgroupUniformLoad.

struct Params {
    rows: u32, bound: u32, per: u32, vocab: u32, logits_at: u32, logits_stride: u32,
    into_at: u32, uniform_at: u32, sharpness_at: u32, top_k_at: u32, top_p_at: u32, min_p_at: u32, out_at: u32,
}

const ONE: u32 = 0x80000000u;
const NOT_A_TOKEN: u32 = 0x80000000u;
// The key of the lowest finite logit; those of -inf and negative NaN lie below.
const LOWEST: u32 = 0x00800000u;

struct Sums { low: vec4<u32>, high: vec4<u32> }

var<workgroup> lows: array<vec4<u32>, LANES>;
var<workgroup> highs: array<vec4<u32>, LANES>;
var<workgroup> shared_sums: Sums;
var<workgroup> shared_word: u32;

// The row, its highest logit (a quarter of it, so that no difference overflows) and the policy's sharpness.
var<private> row_at: u32;
var<private> quarter: f32;
var<private> sharpness: u32;
// What is in play: keys above `cut`, and at it the tokens before `end`.
var<private> cut: u32;
var<private> end: u32;

fn same(lane: u32, x: u32) -> u32 {
    if (lane == 0u) {
        shared_word = x;
    }
    return workgroupUniformLoad(&shared_word);
}

fn add(a: Sums, b: Sums) -> Sums {
    let low = a.low + b.low;
    return Sums(low, a.high + b.high + select(vec4(0u), vec4(1u), low < a.low));
}

// The sums over all lanes.
fn reduce(lane: u32, own: Sums) -> Sums {
    lows[lane] = own.low;
    highs[lane] = own.high;
    for (var half = LANES / 2u; half > 0u; half = half / 2u) {
        workgroupBarrier();
        if (lane < half) {
            let sum = add(Sums(lows[lane], highs[lane]), Sums(lows[lane + half], highs[lane + half]));
            lows[lane] = sum.low;
            highs[lane] = sum.high;
        }
    }
    if (lane == 0u) {
        shared_sums = Sums(lows[0], highs[0]);
    }
    return workgroupUniformLoad(&shared_sums);
}

// An integer that orders as the logit does; both zeros are one.
fn ordered(bits: u32) -> u32 {
    let b = select(bits, 0u, bits == 0x80000000u);
    return select(b ^ 0x80000000u, ~b, (b >> 31u) == 1u);
}

fn logit_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, (key >> 31u) == 1u));
}

// a * b
fn wide(a: u32, b: u32) -> vec2<u32> {
    let ll = (a & 0xffffu) * (b & 0xffffu);
    let lh = (a & 0xffffu) * (b >> 16u);
    let hl = (a >> 16u) * (b & 0xffffu);
    let middle = (ll >> 16u) + (lh & 0xffffu) + (hl & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (lh >> 16u) + (hl >> 16u) + (middle >> 16u);
    return vec2((ll & 0xffffu) | (middle << 16u), high);
}

fn less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// total * share / 2^32, and what is left over
fn part(total: vec2<u32>, share: u32) -> vec3<u32> {
    let high = wide(total.y, share);
    let low = wide(total.x, share);
    let sum = high.x + low.y;
    return vec3(sum, high.y + select(0u, 1u, sum < high.x), low.x);
}

fn weight(key: u32) -> u32 {
    let a = bitcast<u32>(quarter - 0.25 * logit_of(key)) & 0x7fffffffu;
    let b = sharpness & 0x7fffffffu;
    if (a < 0x00800000u || b < 0x00800000u) {
        return ONE;
    }
    let shift = 272 - i32((a >> 23u) + (b >> 23u));
    if (shift < 16) {
        return 0u;
    }
    if (shift >= 48) {
        return ONE;
    }
    let product = wide((a & 0x007fffffu) | 0x00800000u, (b & 0x007fffffu) | 0x00800000u);
    let by = u32(shift);
    var octaves = product.y >> (by & 31u);
    if (by < 32u) {
        octaves = (product.x >> by) | (product.y << (32u - by));
    }
    let whole = octaves >> 26u;
    if (whole >= 32u) {
        return 0u;
    }
    let f = octaves << 6u;
    var q = 493690u;
    q = 5549128u - wide(q, f).y;
    q = 41221829u - wide(q, f).y;
    q = 238369193u - wide(q, f).y;
    q = 1031763626u - wide(q, f).y;
    q = 2977044472u - wide(q, f).y;
    let x = ONE - ((wide(q, f).y + 1u) >> 1u);
    return (x + ((1u << whole) >> 1u)) >> whole;
}

fn key_of(id: u32) -> u32 {
    return ordered(word(row_at + id));
}

fn in_play(key: u32, id: u32) -> bool {
    return key > cut || (key == cut && id < end);
}

// Of all that is in play, how many (or their weights) have keys of at least each of three thresholds, the first the lowest.
fn above(lane: u32, t: vec3<u32>, weighed: bool) -> Sums {
    var sums = Sums(vec4(0u), vec4(0u));
    for (var i = lane; i < p.vocab; i += LANES * 4u) {
//#for j in 4
        {
            let id = i + LANES * ${j}u;
            if (id < p.vocab) {
                let key = key_of(id);
                if (key >= t.x && in_play(key, id)) {
                    var w = 1u;
                    if (weighed) {
                        w = weight(key);
                    }
                    let counted = select(vec3(0u), vec3(w), vec3(key) >= t);
                    sums = add(sums, Sums(vec4(counted, 0u), vec4(0u)));
                }
            }
        }
//#end
    }
    return reduce(lane, sums);
}

// The highest key at and above which there are `needed` tokens (or that weight) in play, at least `cut`. `top` is the key of
// the highest logit.
fn search(lane: u32, needed: vec2<u32>, top: u32, weighed: bool) -> u32 {
    // Browsers take private variables for different from lane to lane.
    let differ = same(lane, cut ^ top);
    if (differ == 0u) {
        return cut;
    }
    // The bits that all keys in play have in common are known.
    let first = i32(firstLeadingBit(differ) & 30u);
    var found = top & ~((4u << u32(first)) - 1u);
    for (var shift = first; shift >= 0; shift -= 2) {
        let unit = 1u << u32(shift);
        let t = vec3(found + unit, found + 2u * unit, found + 3u * unit);
        let sums = above(lane, t, weighed);
        let reached = vec3(
            !less(vec2(sums.low.x, sums.high.x), needed),
            !less(vec2(sums.low.y, sums.high.y), needed),
            !less(vec2(sums.low.z, sums.high.z), needed));
        found = select(select(select(found, t.x, reached.x), t.y, reached.y), t.z, reached.z);
    }
    return max(found, cut);
}

// One past the `n`th token at a key, among those in play.
fn nth_at(lane: u32, key: u32, n: u32) -> u32 {
    let chunk = (p.vocab + LANES - 1u) / LANES;
    let from_ = min(lane * chunk, p.vocab);
    let to = min(from_ + chunk, p.vocab);
    var count = 0u;
    for (var id = from_; id < to; id++) {
        count += select(0u, 1u, key_of(id) == key && in_play(key, id));
    }
    lows[lane].x = count;
    workgroupBarrier();
    var before = 0u;
    for (var i = 0u; i < lane; i++) {
        before += lows[i].x;
    }
    if (before < n && before + count >= n) {
        var left = n - before;
        for (var id = from_; left > 0u; id++) {
            left -= select(0u, 1u, key_of(id) == key && in_play(key, id));
            shared_word = id + 1u;
        }
    }
    return workgroupUniformLoad(&shared_word);
}

// Cuts what is in play to the highest, as many as `needed` says.
fn keep(lane: u32, needed: vec2<u32>, top: u32, weighed: bool) {
    let key = search(lane, needed, top, weighed);
    // From the key on, and above it.
    let over = above(lane, vec3(key, key + 1u, 0xffffffffu), weighed);
    var ties = over;
    var each = 1u;
    if (weighed) {
        ties = above(lane, vec3(key, key + 1u, 0xffffffffu), false);
        each = weight(key);
    }
    let at_key = ties.low.x - ties.low.y;
    // The least number of those at the key with which the sum is reached; all, where it is not.
    let have = vec2(over.low.y, over.high.y);
    let left = vec2(needed.x - have.x, needed.y - have.y - select(0u, 1u, needed.x < have.x));
    var least = 1u;
    var most = max(at_key, 1u);
    while (least < most) {
        let middle = (least + most) / 2u;
        if (less(wide(middle, each), left)) {
            least = middle + 1u;
        } else {
            most = middle;
        }
    }
    least = same(lane, least);
    if (least < at_key) {
        end = nth_at(lane, key, least);
    } else if (key != cut) {
        end = p.vocab;
    }
    cut = key;
}

// The first token in play, of at least `floor_` in weight, at which the sum of weights exceeds the share `uniform_` of the
// total: first its lane's part of the row, then its lane's part of that, and so on.
fn choose(lane: u32, uniform_: u32, floor_: u32) -> u32 {
    var from_ = 0u;
    var len = p.vocab;
    var target_ = vec2(0u);
    var known = false;
    while (true) {
        let chunk = (len + LANES - 1u) / LANES;
        let first = min(lane * chunk, len);
        let last = min(first + chunk, len);
        var own = Sums(vec4(0u), vec4(0u));
        for (var i = first; i < last; i++) {
            let key = key_of(from_ + i);
            if (in_play(key, from_ + i)) {
                let w = weight(key);
                own = add(own, Sums(vec4(select(0u, w, w >= floor_), 0u, 0u, 0u), vec4(0u)));
            }
        }
        lows[lane].x = own.low.x;
        highs[lane].x = own.high.x;
        workgroupBarrier();
        if (lane == 0u) {
            var goal = target_;
            if (!known) {
                var total = Sums(vec4(0u), vec4(0u));
                for (var i = 0u; i < LANES; i++) {
                    total = add(total, Sums(vec4(lows[i].x), vec4(highs[i].x)));
                }
                goal = part(vec2(total.low.x, total.high.x), uniform_).xy;
            }
            var sum = Sums(vec4(0u), vec4(0u));
            var at = 0u;
            for (; at < LANES; at++) {
                let next = add(sum, Sums(vec4(lows[at].x), vec4(highs[at].x)));
                if (less(goal, vec2(next.low.x, next.high.x))) {
                    break;
                }
                sum = next;
            }
            // What is left of the goal behind the lanes that lie before it.
            let left = vec2(goal.x - sum.low.x, goal.y - sum.high.x - select(0u, 1u, goal.x < sum.low.x));
            shared_sums = Sums(vec4(at, left.x, left.y, 0u), vec4(0u));
        }
        let found = workgroupUniformLoad(&shared_sums).low;
        target_ = found.yz;
        known = true;
        from_ += min(found.x * chunk, len);
        len = min(chunk, len - min(found.x * chunk, len));
        if (chunk <= 1u) {
            break;
        }
    }
    return select(NONE, from_, from_ < p.vocab);
}

fn draw(lane: u32, row: u32) -> u32 {
    row_at = p.logits_at + row * p.logits_stride;
    var best = 0u;
    var best_id = NONE;
    var bad = NONE;
    for (var i = lane; i < p.vocab; i += LANES * 8u) {
//#for j in 8
        {
            let id = i + LANES * ${j}u;
            if (id < p.vocab) {
                let bits = word(row_at + id);
                if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) {
                    bad = min(bad, id);
                }
                let key = ordered(bits);
                if (key > best) {
                    best = key;
                    best_id = id;
                }
            }
        }
//#end
    }
    lows[lane] = vec4(best, best_id, bad, 0u);
    for (var half = LANES / 2u; half > 0u; half = half / 2u) {
        workgroupBarrier();
        if (lane < half) {
            let a = lows[lane];
            let b = lows[lane + half];
            let other = b.x > a.x || (b.x == a.x && b.y < a.y);
            lows[lane] = vec4(select(a.xy, b.xy, other), min(a.z, b.z), 0u);
        }
    }
    if (lane == 0u) {
        shared_sums = Sums(lows[0], vec4(0u));
    }
    let all = workgroupUniformLoad(&shared_sums).low;
    let top = all.x;
    let top_k = same(lane, word(p.top_k_at + row));
    let top_p = same(lane, word(p.top_p_at + row));
    if (all.z != NONE) {
        return NOT_A_TOKEN | all.z;
    }
    if (top < LOWEST) {
        return NONE;
    }
    if (top_k == 1u) {
        return all.y;
    }
    quarter = 0.25 * logit_of(top);
    sharpness = word(p.sharpness_at + row);
    cut = LOWEST;
    end = p.vocab;
    if (top_k != 0u) {
        keep(lane, vec2(top_k, 0u), top, false);
    }
    if (top_p != 0u) {
        let total = above(lane, vec3(cut), true);
        let share = part(vec2(total.low.x, total.high.x), top_p);
        let low = share.x + select(0u, 1u, share.z != 0u);
        keep(lane, vec2(low, share.y + select(0u, 1u, low < share.x)), top, true);
    }
    return choose(lane, word(p.uniform_at + row), min(word(p.min_p_at + row), ONE));
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let rows = bounded(p.rows, p.bound, p.per);
    for (var row = group.x; row < rows; row += grid.x) {
        let into = same(lane, word(p.into_at + row));
        var token = NONE;
        if (into != NONE) {
            token = draw(lane, row);
        }
        if (lane == 0u) {
            arena[p.out_at + row] = bitcast<f32>(token);
            if (into != NONE) {
                drawn[into] = token;
            }
        }
    }
}
