"""Writes tests/fixtures/blocks: raw weight blocks and their decoded values.

The witness is the numpy decoder of the `gguf` package. Needs: numpy, gguf.

    python tests/oracle/blocks.py            # writes tests/fixtures/blocks
    python tests/oracle/blocks.py --check    # fails if a committed file would change
    python tests/oracle/blocks.py --blocks 100000 --out /tmp/blocks   # for the test `many_blocks_agree`, by the name of
                                                                     # the folder in GRISTMILL_BLOCKS
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "blocks"
LEGACY_BLOCKS, K_BLOCKS = 64, 16
PLAIN_ROW = 32  # F16 and BF16 have no block: files hold this many values a "block"

# Where the f16 fields lie (scale first, then the minimum) and which byte ranges hold codes.
# Sub-block scales, and what else is no f16, are left random.
FIELDS = {
    "Q4_0": ([0], (2, 18)),
    "Q4_1": ([0, 2], (4, 20)),
    "Q5_0": ([0], (2, 22)),
    "Q5_1": ([0, 2], (4, 24)),
    "Q8_0": ([0], (2, 34)),
    "Q4_K": ([0, 2], (16, 144)),
    "Q5_K": ([0, 2], (16, 176)),
    "Q6_K": ([208], (0, 192)),
    "Q2_K": ([80, 82], (16, 80)),
    "Q3_K": ([108], (0, 96)),
    "IQ1_S": ([0], (2, 50)),
    "IQ1_M": ([], (0, 48)),
    "IQ2_XXS": ([0], (2, 66)),
    "IQ2_XS": ([0], (2, 74)),
    "IQ2_S": ([0], (2, 82)),
    "IQ3_XXS": ([0], (2, 98)),
    "IQ3_S": ([0], (2, 110)),
    "IQ4_NL": ([0], (2, 18)),
    "IQ4_XS": ([0], (2, 136)),
    "TQ1_0": ([52], (0, 52)),
    "TQ2_0": ([64], (0, 64)),
    "MXFP4": ([], (1, 17)),
    "NVFP4": ([], (4, 36)),
}

# The f16 of IQ1_M lies in the upper nibbles of four words.
NIBBLES = {"IQ1_M": 48}

ONE, MINUS_TWO, MINUS_ZERO, MAX = 0x3C00, 0xC000, 0x8000, 0x7BFF
SMALLEST, LARGEST_SUBNORMAL, NEGATIVE_SUBNORMAL = 0x0001, 0x03FF, 0x8155


def finite_f16(rng, n):
    """n random finite f16 bit patterns: half of any exponent, half of the size real scales have."""
    wild = rng.integers(0, 0x7C00, n, dtype=np.uint16)
    usual = (rng.uniform(2.0**-12, 0.25, n)).astype(np.float16).view(np.uint16)
    bits = np.where(np.arange(n) % 2 == 0, wild, usual)
    return bits | (rng.integers(0, 2, n, dtype=np.uint16) << 15)


def finite_bf16(rng, n):
    bits = rng.integers(0, 0x7F80, n, dtype=np.uint16)
    return bits | (rng.integers(0, 2, n, dtype=np.uint16) << 15)


def put_nibbles(blocks, index, offset, bits):
    for i in range(4):
        high = np.uint8((int(bits) >> (4 * i) & 15) << 4)
        blocks[index, offset + 2 * i + 1] = blocks[index, offset + 2 * i + 1] & 15 | high


def put16(blocks, index, offset, bits):
    blocks[index, offset : offset + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)


def quantised(name, rng, n=None):
    block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    n = n or (K_BLOCKS if block_len == 256 else LEGACY_BLOCKS)
    fields, (lo, hi) = FIELDS[name]
    blocks = rng.integers(0, 256, (n, block_bytes), dtype=np.uint8)
    if name in NIBBLES:
        for i, bits in enumerate(finite_f16(rng, n)):
            put_nibbles(blocks, i, NIBBLES[name], bits)
    if name == "MXFP4":  # every exponent at an end, others as they come; 255 is 2^127, with which values are not finite
        blocks[:6, 0] = [0, 1, 2, 3, 250, 251]
        blocks[6:, 0] = rng.integers(0, 252, n - 6)
    if name == "NVFP4":  # every byte of a scale
        blocks[:, :4] = np.arange(4 * n).astype(np.uint8).reshape(n, 4)
    for offset in fields:
        for i, bits in enumerate(finite_f16(rng, n)):
            put16(blocks, i, offset, bits)

    # Edge blocks come first. A pair is (scale, minimum); formats without a minimum use the scale.
    edges = [
        (0x0000, 0x0000),
        (SMALLEST, LARGEST_SUBNORMAL),
        (NEGATIVE_SUBNORMAL, SMALLEST),
        (MINUS_TWO, ONE),
        (MINUS_ZERO, MINUS_TWO),
        (MAX, MAX),
    ]
    for i, pair in enumerate(edges):
        for offset, bits in zip(fields, pair):
            put16(blocks, i, offset, bits)
        if name in NIBBLES:
            put_nibbles(blocks, i, NIBBLES[name], pair[0])
    for i, fill in ((6, 0xFF), (7, 0x00)):  # every code the largest, every code the smallest
        blocks[i, lo:hi] = fill
        for offset in fields:
            put16(blocks, i, offset, ONE)
        if name in NIBBLES:
            put_nibbles(blocks, i, NIBBLES[name], ONE)
    if name in ("Q4_K", "Q5_K"):
        blocks[6, 4:16] = 0xFF  # every 6-bit scale and minimum 63
    if name == "Q6_K":
        blocks[6, 192:208] = 0x80  # every sub-block scale -128
    return blocks


def plain(name, rng):
    n = LEGACY_BLOCKS * PLAIN_ROW
    if name == "F16":
        bits = finite_f16(rng, n)
        edges = [0x0000, MINUS_ZERO, SMALLEST, 0x8001, LARGEST_SUBNORMAL, 0x83FF, 0x0400, 0x8400, MAX, 0xFBFF, ONE]
    else:
        bits = finite_bf16(rng, n)
        edges = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x807F, 0x0080, 0x8080, 0x7F7F, 0xFF7F, 0x3F80]
    bits[: len(edges)] = edges
    return bits.view(np.uint8).reshape(LEGACY_BLOCKS, PLAIN_ROW * 2)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    args.add_argument("--out", type=Path, default=OUT, help="another folder, for the exhaustive test")
    args.add_argument("--blocks", type=int, help="blocks of each type instead of the fixtures' few")
    args = args.parse_args()
    check, out = args.check, args.out
    out.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(["F16", "BF16", *FIELDS]):
        rng = np.random.default_rng(1000 + seed)
        raw = plain(name, rng) if name in ("F16", "BF16") else quantised(name, rng, args.blocks)
        values = dequantize(raw, GGMLQuantizationType[name]).astype("<f4", copy=False)
        assert np.isfinite(values).all(), name
        for suffix, data in (("bin", raw.tobytes()), ("f32", values.tobytes())):
            path = out / f"{name}.{suffix}"
            if check:
                assert path.read_bytes() == data, f"{path.name} differs"
            else:
                path.write_bytes(data)
        print(f"{name:5} {raw.shape[0]:3} x {raw.shape[1]:3} bytes -> {values.shape[1]:3} values each")


if __name__ == "__main__":
    main()
