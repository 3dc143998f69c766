"""Writes tests/fixtures/ops: inputs and answers of the ops, computed by PyTorch in float64.

Needs: numpy, torch, safetensors, gguf.

    python tests/oracle/ops.py            # writes the files
    python tests/oracle/ops.py --check    # fails if a committed file would change
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from store import NO_SNAP, File, Inputs, snaps, wide


def rms_norm(f):
    rng = Inputs(1)
    for name, shape, eps, scale in [
        ("one", (1, 1), 1e-6, 1.0),
        ("tiny", (2, 3), 1e-5, 1.0),
        ("odd", (5, 37), 1e-5, 1.0),
        ("medium", (7, 576), 1e-5, 3.0),
        ("long", (2, 2047), 1e-6, 1.0),
        ("heads", (3, 5, 64), 1e-6, 1.0),
        # eps outside the root would be far off in these two
        ("eps_rules", (3, 65), 1e-2, 1e-2),
        ("small_values", (3, 65), 1e-6, 1e-4),
        ("large_values", (3, 65), 1e-6, 1e15),
    ]:
        x = rng.normal(*shape, scale=scale)
        if name == "odd":
            x[2] = 0.0
        if name == "medium":
            x[1, 100] = 3000.0  # an outlier channel, as real models have
        w = rng.normal(shape[-1]) + np.float32(1)
        f.case(name, {"eps": eps}, x=x, w=w, y=F.rms_norm(wide(x), shape[-1:], wide(w), eps))
        f.case(f"{name}_unweighted", {"eps": eps}, x=x, y=F.rms_norm(wide(x), shape[-1:], None, eps))


def add_rms_norm(f):
    rng = Inputs(2)
    for name, shape in [("one", (1, 1)), ("odd", (5, 37)), ("medium", (7, 576))]:
        x, y, w = rng.normal(*shape), rng.normal(*shape, scale=0.1), rng.normal(shape[-1])
        total = x + y  # the sum is a float32 result of its own
        f.case(name, {"eps": 1e-5}, x=x, y=y, w=w, sum=total, normed=F.rms_norm(wide(total), shape[-1:], wide(w), 1e-5))


def rotate(x, pos, inv_freq, magnitude):
    """Half-split rotation as a complex product: dims (i, i + F) are one number turned by pos * inv_freq[i]."""
    n = len(inv_freq)
    angle = wide(pos)[:, None].double() * wide(inv_freq)[None, :]
    turn = torch.polar(torch.full_like(angle, magnitude), angle)[:, None, :]
    z = torch.complex(wide(x)[..., :n], wide(x)[..., n : 2 * n]) * turn
    return torch.cat([z.real, z.imag, wide(x)[..., 2 * n :]], -1)


def frequencies(rotary, theta):
    return (theta ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)


def rope(f):
    rng = Inputs(3)
    for name, pos, heads, head_dim, rotary, theta, magnitude in [
        ("tiny", [0], 1, 2, 2, 1e4, 1.0),
        ("one_pair", [3, 0, 1], 2, 4, 2, 1e4, 1.0),
        ("odd", [5, 6, 7, 0, 1], 3, 6, 6, 1e4, 1.0),
        ("full", [0, 1, 2, 3, 100, 511], 9, 64, 64, 1e4, 1.0),
        ("partial", [4, 5, 9], 3, 80, 32, 1e6, 1.0),
        ("magnitude", [0, 1, 17, 63], 2, 32, 32, 1e4, 1.2772588722239782),
        ("partial_magnitude", [2, 40], 2, 24, 16, 1e4, 0.5),
    ]:
        x, inv = rng.normal(len(pos), heads, head_dim), frequencies(rotary, theta)
        magnitude = float(np.float32(magnitude))
        f.case(name, {"magnitude": magnitude}, x=x, pos=pos, inv_freq=inv, y=rotate(x, pos, inv, magnitude))
    # Powers of two: pos * inv_freq is exact in float32, so far positions test the sine, not the angle's rounding.
    x, inv, pos = rng.normal(5, 2, 16), (2.0 ** -np.arange(8)).astype(np.float32), [1000, 4095, 32767, 131071, 1000003]
    f.case("far", {"magnitude": 1.0}, x=x, pos=pos, inv_freq=inv, y=rotate(x, pos, inv, 1.0))


ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "sigmoid": torch.sigmoid,
}


def activate(f):
    rng = Inputs(4)
    grid = np.concatenate(
        [
            np.linspace(-12, 12, 1001),
            [-1e4, -200, -104, -103, -89, -88, -87, -30, -20, 20, 30, 87, 88, 89, 104, 200, 1e4],
            [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20, -1e-7, 1e-4],
        ]
    ).astype(np.float32)
    for name, act in ACTIVATIONS.items():
        f.case(name, x=grid, y=act(wide(grid)))
        x = rng.normal(3, 37, scale=3)
        f.case(f"{name}_rows", x=x, y=act(wide(x)))


def gated_activate(f):
    rng = Inputs(5)
    for name, act in ACTIVATIONS.items():
        for size, shape in [("one", (1, 1)), ("odd", (3, 37)), ("medium", (2, 1536))]:
            gate, up = rng.normal(*shape, scale=3), rng.normal(*shape)
            y = act(wide(gate)) * wide(up)
            f.case(f"{name}_{size}", {"activation": name}, gate=gate, up=up, y=y)


def softmax(f):
    rng = Inputs(6)
    for name, x in [
        ("one", rng.normal(1, 1)),
        ("odd", rng.normal(3, 37, scale=3)),
        ("medium", rng.normal(4, 1000, scale=5)),
        ("large_values", rng.normal(3, 33, scale=1e4)),
        ("equal", np.full((2, 7), 3.5, np.float32)),
        ("masked", np.where(rng.uniform(4, 19) < 0.5, rng.normal(4, 19), -np.inf).astype(np.float32)),
    ]:
        f.case(name, x=x, y=torch.softmax(wide(x), -1))


def matmul(f):
    rng = Inputs(7)
    for name, lead, k, n in [
        ("one", (1,), 1, 1),
        ("tiny", (2,), 3, 5),
        ("odd", (7,), 37, 11),
        ("batched", (2, 3), 33, 9),
        ("vector", (1,), 576, 192),
        ("medium", (13,), 257, 130),
    ]:
        x, w, bias = rng.normal(*lead, k), rng.normal(n, k, scale=k**-0.5), rng.normal(n)
        f.case(name, x=x, w=w, bias=bias, y=F.linear(wide(x), wide(w)), y_biased=F.linear(wide(x), wide(w), wide(bias)))
    # Large terms that cancel: a float32 sum in a poor order loses them.
    x, w = rng.normal(3, 200), rng.normal(4, 200)
    x[:, 0], x[:, 100], w[:, 0], w[:, 100] = 4096, -4096, 1, 1
    f.case("cancelling", x=x, w=w, y=F.linear(wide(x), wide(w)))


def block_rows(name, n, k, rng):
    """n rows of k weights of about k^-0.5 in a block format. K formats: random codes under usual scales."""
    kind = GGMLQuantizationType[name]
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    if block_len < 256:
        return quantize(rng.normal(n, k, scale=k**-0.5), kind).reshape(n, -1).view(np.uint8)
    raw = rng.rng.integers(0, 256, (n, k // block_len, block_bytes), dtype=np.uint8)
    unit = {"Q4_K": 2.0**-9, "Q5_K": 2.0**-10, "Q6_K": 2.0**-11}[name] * k**-0.5
    fields = [(208, 1.0)] if name == "Q6_K" else [(0, 1.0), (2, 7.0 if name == "Q4_K" else 15.0)]
    for offset, factor in fields:
        d = (rng.uniform(n, k // block_len, low=0.5, high=1.5) * unit * factor).astype(np.float16)
        raw[..., offset : offset + 2] = d[..., None].view(np.uint8)
    return raw.reshape(n, -1)


def matmul_blocks(f):
    """Weights stay in their blocks (`w`, U8, a row per output); the answer uses the exactly decoded values."""
    rng = Inputs(8)
    for name in ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]:
        step = 256 if name.endswith("_K") else 32
        for size, rows, k, n in [("one_block", 1, step, 1), ("odd", 3, 3 * step, 7), ("medium", 5, 768, 33)]:
            x, w = rng.normal(rows, k), block_rows(name, n, k, rng)
            decoded = dequantize(w, GGMLQuantizationType[name])
            params = {"dtype": name, "k": k, "n": n}
            f.case(f"{name}_{size}", params, x=x, w=w, y=F.linear(wide(x), wide(decoded)))


def attend(q, k, v, pos, until, scale, window, softcap):
    """Attention of rows over one sequence's keys. Float64. A row that sees no key gives zeros."""
    keys, group = torch.arange(len(k)), q.shape[1] // k.shape[1]
    first = torch.zeros_like(pos) if window is None else (pos + 1 - window).clamp(min=0)
    seen = (keys[None, :] >= first[:, None]) & (keys[None, :] < until[:, None])
    scores = torch.einsum("rhd,thd->rht", q, k.repeat_interleave(group, 1)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None, :], -torch.inf)
    y = torch.einsum("rht,thd->rhd", torch.softmax(scores, -1).nan_to_num(0.0), v.repeat_interleave(group, 1))
    if softcap is None and seen.any(1).all():  # PyTorch's own attention says the same
        same = F.scaled_dot_product_attention(
            *(t.transpose(0, 1)[None] for t in (q, k, v)), attn_mask=seen, scale=scale, enable_gqa=True
        )
        assert torch.allclose(same[0].transpose(0, 1), y, rtol=1e-12, atol=1e-12)
    return y


def attention(f):
    """`lengths[s]` keys of each sequence lie one after the other in k and v; its `extents[s]` queries in q."""
    rng = Inputs(9)
    for name, lengths, extents, hq, hkv, dk, dv, window, softcap, spread in [
        ("one", [1], [1], 1, 1, 2, 2, None, None, 1),
        ("tiny", [3], [3], 2, 1, 4, 4, None, None, 1),
        ("prefill", [37], [37], 6, 2, 16, 16, None, None, 1),
        ("decode", [90], [1], 6, 2, 64, 64, None, None, 1),
        ("chunk", [83], [20], 2, 2, 32, 32, None, None, 1),
        ("ragged", [5, 33, 1, 17, 64], [5, 1, 1, 0, 7], 8, 2, 24, 24, None, None, 1),
        ("unequal_dims", [40], [9], 4, 2, 24, 16, None, None, 1),
        ("window_1", [20], [20], 2, 1, 8, 8, 1, None, 1),
        ("window_16", [70, 16, 17], [70, 3, 17], 4, 2, 16, 16, 16, None, 1),
        ("window_longer", [12], [12], 2, 2, 16, 16, 100, None, 1),
        ("softcap", [45], [45], 4, 2, 16, 16, None, 5.0, 4),
        ("window_softcap", [60, 9], [33, 9], 4, 1, 24, 24, 13, 20.0, 4),
        ("sharp", [64], [8], 2, 1, 32, 32, None, None, 60),  # scores in the hundreds: one key takes nearly all
        ("long", [600], [3], 4, 1, 32, 32, None, None, 1),
    ]:
        q, k = rng.normal(sum(extents), hq, dk, scale=spread), rng.normal(sum(lengths), hkv, dk)
        v = rng.normal(sum(lengths), hkv, dv)
        pos = np.concatenate([np.arange(n - e, n) for n, e in zip(lengths, extents)])
        variants = [("", pos + 1)]
        if name in ("prefill", "ragged", "window_16"):
            # An encoder sees to the end of its sequence; and some rows that see nothing.
            end = np.concatenate([np.full(e, n) for n, e in zip(lengths, extents)])
            variants += [("_to_end", end), ("_some_blind", np.where(np.arange(len(pos)) % 3 == 1, 0, pos + 1))]
        scale = float(np.float32(dk**-0.5))
        for suffix, until in variants:
            rows, base, y = 0, 0, []
            for n, e in zip(lengths, extents):
                r, t = slice(rows, rows + e), slice(base, base + n)
                args = wide(q[r]), wide(k[t]), wide(v[t]), wide(pos[r]), wide(until[r])
                y.append(attend(*args, scale, window, softcap))
                rows, base = rows + e, base + n
            params = {"scale": scale, "window": window, "softcap": softcap}
            tensors = dict(q=q, k=k, v=v, pos=pos, until=until, lengths=lengths, extents=extents)
            f.case(name + suffix, params, **tensors, y=torch.cat(y))


def convolve(x, w, state):
    """Causal depthwise convolution of one sequence [T, D] after `state` [L - 1, D]."""
    padded = torch.cat([state, x]).T[None]
    return F.conv1d(padded, w[:, None, :], groups=len(w))[0].T, padded[0].T


def short_conv(f):
    """`gated` cases take `bcx` = B | C | x: the convolution runs over B * x and C multiplies its result."""
    rng = Inputs(10)
    for name, taps, dim, start, extents, slots in [
        ("one", 3, 1, [0], [1], [0]),
        ("fresh", 3, 7, [0], [9], [1]),
        ("shorter_than_taps", 4, 5, [0, 0], [1, 2], [2, 0]),
        ("continued", 3, 16, [12, 1], [5, 1], [1, 0]),
        ("ragged", 4, 33, [0, 7, 2, 0, 64], [6, 1, 3, 0, 2], [3, 0, 4, 2, 1]),
        ("medium", 3, 256, [0, 30], [20, 1], [0, 1]),
    ]:
        rows, count = sum(extents), max(slots) + 2
        bcx, ring = rng.normal(rows, 3 * dim), rng.normal(count, taps - 1, dim)
        w = rng.normal(dim, taps)
        pos = np.concatenate([np.arange(p, p + e) for p, e in zip(start, extents)])
        ends, snap = np.cumsum(extents), snaps(extents, slots, count - 1)
        for gated in (False, True):
            b, c, x = wide(bcx).chunk(3, -1)
            # A product B * x is a float32 value of the graph before the convolution reads it.
            x = (b * x).float().double() if gated else x
            after, y = wide(ring).clone(), []
            for p, end, extent, slot in zip(start, ends, extents, slots):
                if extent == 0:
                    continue
                state = wide(ring)[slot] if p else torch.zeros(taps - 1, dim, dtype=torch.float64)
                out, history = convolve(x[end - extent : end], wide(w), state)
                for i in range(extent):
                    if snap[end - extent + i] != NO_SNAP:
                        after[int(snap[end - extent + i])] = history[i + 1 : i + taps]
                y.append(out)
            y = torch.cat(y)
            inputs = {"bcx": bcx} if gated else {"x": x}
            steps = dict(ring=ring, pos=pos, extents=extents, slots=slots, snap=snap)
            y = y * c if gated else y
            f.case(name + "_gated" * gated, {"gated": gated}, **inputs, w=w, **steps, y=y, ring_after=after)


def choose(logits, k, renormalise):
    """Probabilities over all experts, the k largest (ties to the lower id), optionally made to sum 1."""
    probabilities = torch.softmax(logits, -1)
    weights, experts = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :k], experts[:, :k]
    return weights / weights.sum(-1, keepdim=True) if renormalise else weights, experts


def route(f):
    rng = Inputs(11)
    cases = [
        ("one", rng.normal(1, 1), 1),
        ("tiny", rng.normal(3, 4), 2),
        ("all", rng.normal(2, 5), 5),
        ("odd", rng.normal(7, 60, scale=2), 4),
        ("medium", rng.normal(33, 128, scale=2), 8),
        ("ties", np.round(rng.normal(16, 32)), 6),
        ("all_equal", np.zeros((2, 9), np.float32), 3),
        ("large_values", rng.normal(4, 16, scale=20), 3),
    ]
    for name, logits, k in cases:
        gaps = -torch.sort(wide(logits), -1, descending=True).values.diff(dim=-1)[:, :k]
        assert ((gaps == 0) | (gaps > 1e-5)).all(), name  # no choice hangs on rounding
        for renormalise in (False, True):
            weights, experts = choose(wide(logits), k, renormalise)
            params = {"k": k, "renormalise": renormalise}
            f.case(name + "_renormalised" * renormalise, params, logits=logits, weights=weights, experts=experts)


def moe(f):
    """A whole block: router, chosen SwiGLU experts, weighted sum. `y_experts` [R, k, H] is each one's own answer."""
    rng = Inputs(12)
    for name, rows, hidden, inner, experts, k in [
        ("tiny", 1, 2, 3, 2, 1),
        ("odd", 5, 9, 7, 5, 3),
        ("medium", 11, 32, 48, 16, 4),
    ]:
        x, router = rng.normal(rows, hidden), rng.normal(experts, hidden)
        gate, up = rng.normal(experts, inner, hidden, scale=0.4), rng.normal(experts, inner, hidden, scale=0.4)
        down = rng.normal(experts, hidden, inner, scale=0.4)
        logits = F.linear(wide(x), wide(router))
        gaps = -torch.sort(logits, -1, descending=True).values.diff(dim=-1)
        assert gaps[:, :k].min() > 1e-3  # no choice hangs on rounding
        for renormalise in (False, True):
            weights, chosen = choose(logits, k, renormalise)
            each = torch.empty(rows, k, hidden, dtype=torch.float64)
            for r in range(rows):
                for s in range(k):
                    e = int(chosen[r, s])
                    inside = F.silu(wide(gate)[e] @ wide(x)[r]) * (wide(up)[e] @ wide(x)[r])
                    each[r, s] = wide(down)[e] @ inside
            f.case(
                name + "_renormalised" * renormalise,
                {"k": k, "renormalise": renormalise},
                **dict(x=x, router=router, gate=gate, up=up, down=down, logits=logits),
                **dict(weights=weights, experts=chosen, y_experts=each, y=(each * weights[..., None]).sum(1)),
            )


def top_k(f):
    """Largest first, ties to the lower index."""
    rng = Inputs(13)
    infinite = rng.normal(3, 21)
    infinite[:, ::2] = -np.inf
    for name, x, k in [
        ("one", rng.normal(1, 1), 1),
        ("odd", rng.normal(3, 37), 5),
        ("all", rng.normal(2, 11), 11),
        ("ties", np.round(rng.normal(5, 200)), 40),
        ("equal", np.ones((1, 100), np.float32), 7),
        ("minus_infinity", infinite, 12),
        ("vocabulary", rng.normal(2, 20000, scale=4), 50),
    ]:
        values, ids = torch.sort(wide(x), dim=-1, descending=True, stable=True)
        f.case(name, {"k": k}, x=x, values=values[:, :k], ids=ids[:, :k])


OPS = [
    rms_norm, add_rms_norm, rope, activate, gated_activate, softmax, matmul, matmul_blocks,
    attention, short_conv, route, moe, top_k,
]  # fmt: skip


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    check = args.parse_args().check
    torch.set_num_threads(1)
    for op in OPS:
        f = File(op.__name__)
        op(f)
        f.finish(check)


if __name__ == "__main__":
    main()
