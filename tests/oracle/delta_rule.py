"""Writes tests/fixtures/ops/gated_delta_rule.safetensors: inputs and answers of the gated delta rule.

The witness is transformers' own recurrence of Qwen3-Next, which works in float32: an answer is as far from the exact one
as a kernel's may be. Needs: numpy, torch, safetensors, transformers 5.

    python tests/oracle/delta_rule.py            # writes the file
    python tests/oracle/delta_rule.py --check    # fails if the committed file would change
"""

import argparse

import numpy as np
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from store import NO_SNAP, File, Inputs, snaps

EPS = 1e-6  # that of the witness


def advance(q, k, v, log_decay, beta, state):
    """The rows of one sequence after `state`, or from zeros; results, and the state after them."""
    y, after = torch_recurrent_gated_delta_rule(
        *(torch.from_numpy(t)[None] for t in (q, k, v, log_decay, beta)),
        initial_state=state if state is None else torch.from_numpy(state)[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return y[0].numpy(), after[0].numpy()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    check = args.parse_args().check
    torch.set_num_threads(1)
    f = File("gated_delta_rule")
    rng = Inputs(14)
    for name, key_heads, heads, dk, dv, start, extents, slots in [
        ("one", 1, 1, 1, 1, [0], [1], [0]),
        ("fresh", 1, 1, 5, 7, [0], [9], [1]),
        ("groups", 2, 6, 8, 12, [0], [17], [0]),
        ("continued", 1, 2, 16, 16, [12, 1], [5, 1], [1, 0]),
        ("ragged", 2, 4, 9, 10, [0, 7, 2, 0, 64], [6, 1, 3, 0, 2], [3, 0, 4, 2, 1]),
        ("long", 1, 1, 16, 16, [0], [150], [0]),
    ]:
        rows, count = sum(extents), max(slots) + 2
        q, k = rng.normal(rows, key_heads, dk), rng.normal(rows, key_heads, dk, scale=3)
        v = rng.normal(rows, heads, dv)
        # As the models make them: minus a rate times a softplus, and a sigmoid.
        gate = np.log1p(np.exp(rng.normal(rows, heads).astype(np.float64)))
        log_decay = (-np.exp(rng.normal(heads).astype(np.float64)) * gate / 4).astype(np.float32)
        beta = (1 / (1 + np.exp(-rng.normal(rows, heads).astype(np.float64)))).astype(np.float32)
        state = rng.normal(count, heads, dk, dv, scale=0.5)
        pos = np.concatenate([np.arange(p, p + e) for p, e in zip(start, extents)])
        ends, snap = np.cumsum(extents), snaps(extents, slots, count - 1)
        after, y = state.copy(), []
        for p, end, extent, slot in zip(start, ends, extents, slots):
            at = state[slot] if p else None
            for row in range(end - extent, end):
                one = slice(row, row + 1)
                out, at = advance(q[one], k[one], v[one], log_decay[one], beta[one], at)
                y.append(out)
                if snap[row] != NO_SNAP:
                    after[int(snap[row])] = at
        step = dict(pos=pos, extents=extents, slots=slots, snap=snap)
        gates = dict(log_decay=log_decay, beta=beta)
        params = {"scale": dk**-0.5, "eps": EPS}
        f.case(name, params, q=q, k=k, v=v, **gates, state=state, **step, y=np.concatenate(y), state_after=after)
    f.finish(check)


if __name__ == "__main__":
    main()
