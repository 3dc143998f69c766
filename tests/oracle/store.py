"""Fixture files: one safetensors file per op, several cases in each.

A tensor is named CASE.ROLE. The file's metadata maps CASE to a JSON object with the op's parameters, and `op` to the
op's name. Floats are stored as F32 (float64 answers are rounded once), ids and counts as U32, raw blocks as U8.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "ops"
LIMIT = 1_000_000  # bytes a file may have
KINDS = {"float32": "F32", "uint32": "U32", "uint8": "U8"}


class File:
    def __init__(self, op):
        self.op, self.tensors, self.meta = op, {}, {"op": op}

    def case(self, name, params=None, **tensors):
        assert name not in self.meta and "." not in name, name
        self.meta[name] = json.dumps(params or {}, sort_keys=True)
        for role, value in tensors.items():
            self.tensors[f"{name}.{role}"] = stored(value)

    def finish(self, check):
        path = OUT / f"{self.op}.safetensors"
        if check:
            self.compare(path)
        else:
            OUT.mkdir(parents=True, exist_ok=True)
            data = serialise(self.tensors, self.meta)
            assert len(data) <= LIMIT, f"{path.name}: {len(data)} bytes"
            path.write_bytes(data)
        print(f"{self.op:14} {len(self.meta) - 1:3} cases {path.stat().st_size:8} bytes")

    def compare(self, path):
        """Inputs and ids must be equal; answers may differ by the last bits of another libm."""
        with safe_open(path, "np") as f:
            assert f.metadata() == self.meta, f"{path.name}: the cases differ"
            assert set(f.keys()) == set(self.tensors), f"{path.name}: the tensors differ"
            for name, want in self.tensors.items():
                have = f.get_tensor(name)
                same = have.dtype == want.dtype and have.shape == want.shape
                assert same and np.allclose(have, want, rtol=3e-7, atol=1e-30, equal_nan=True), f"{path.name}: {name}"


def serialise(tensors, metadata):
    """The safetensors file, its header sorted: the package's own writer orders metadata anew at every run."""
    header, data = {"__metadata__": metadata}, b""
    # Wider elements first, so that every tensor is aligned to its element.
    for name in sorted(tensors, key=lambda n: (-tensors[n].itemsize, n)):
        array, start = tensors[name], len(data)
        data += array.tobytes()
        spec = {"dtype": KINDS[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, len(data)]}
        header[name] = spec
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def stored(value):
    """The array as the file keeps it."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    value = np.asarray(value)
    if value.dtype == np.uint8:
        return np.ascontiguousarray(value)
    kind = np.float32 if np.issubdtype(value.dtype, np.floating) else np.uint32
    return np.ascontiguousarray(value.astype(kind))


def wide(value):
    """A float32 (or integer) array as a torch tensor for float64 arithmetic."""
    value = np.asarray(value)
    return torch.from_numpy(value.astype(np.float64 if np.issubdtype(value.dtype, np.floating) else np.int64))


class Inputs:
    """Random inputs, the same on every machine."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape, scale=1.0):
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def uniform(self, *shape, low=0.0, high=1.0):
        return self.rng.uniform(low, high, shape).astype(np.float32)


NO_SNAP = 0xFFFFFFFF  # a row that stores no state


def snaps(extents, slots, spare):
    """For each row the slot that it stores: the last row of every sequence its own; the first of the longest `spare`."""
    snap = np.full(sum(extents), NO_SNAP, np.uint32)
    ends = np.cumsum(extents)
    for end, extent, slot in zip(ends, extents, slots):
        if extent:
            snap[end - 1] = slot
    longest = int(np.argmax(extents))
    if extents[longest] > 1:
        snap[ends[longest] - extents[longest]] = spare
    return snap
