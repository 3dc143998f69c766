"""Writes tests/fixtures/encode: rows of weights and what the `gguf` package makes of them.

The witness is the numpy encoder of the package, for the types that it has one for. Needs: numpy, gguf.

    python tests/oracle/encode.py            # writes tests/fixtures/encode
    python tests/oracle/encode.py --check    # fails if a committed file would change
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "encode"
TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
ROWS, LEN = 16, 512


def rows():
    """Normal rows of the sizes weights have; then with outliers, with a mean, of a Laplace distribution, and zeros."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(ROWS, LEN)) * 10.0 ** rng.uniform(-3, 0.5, (ROWS, 1))
    x[10, ::37] *= 20
    x[11] += np.abs(x[11]).max()
    x[12] = rng.laplace(size=LEN) * 0.02
    x[13, 64:192] = 0
    x[14] = np.sign(x[14]) * 0.03125
    x[15] = 0
    return x.astype(np.float32)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    check = args.parse_args().check
    OUT.mkdir(parents=True, exist_ok=True)
    x = rows()
    files = {"rows.f32": x.astype("<f4").tobytes()}
    for name in TYPES:
        files[f"{name}.bin"] = quantize(x, GGMLQuantizationType[name]).tobytes()
    for name, data in files.items():
        if check:
            assert (OUT / name).read_bytes() == data, f"{name} differs"
        else:
            (OUT / name).write_bytes(data)
        print(f"{name:10} {len(data)} bytes")


if __name__ == "__main__":
    main()
