"""Writes crates/tensor/src/blocks/grids.rs: the code books of the IQ formats.

The tables are part of the formats: a block holds indices into them. The source is the numpy decoder of the `gguf`
package, which carries them packed, two or four bits a value. Needs: numpy, gguf.

    python tests/oracle/grids.py            # writes the file
    python tests/oracle/grids.py --check    # fails if the committed file would change
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).resolve().parents[2] / "crates" / "tensor" / "src" / "blocks" / "grids.rs"

HEAD = """\
//! The code books of the IQ formats, as GGML defines them (`ggml-common.h`), packed. Written by `tests/oracle/grids.py`.
//!
//! An entry of 8 values has 2 bits for each, one of 4 values 4 bits, the first value in the lowest bits. They index the
//! format's few magnitudes, which are beside its decoder.
"""

BOOKS = [
    ("IQ1", "IQ1_S", "IQ1_S and IQ1_M"),
    ("IQ2_XXS", "IQ2_XXS", "IQ2_XXS"),
    ("IQ2_XS", "IQ2_XS", "IQ2_XS"),
    ("IQ2_S", "IQ2_S", "IQ2_S"),
    ("IQ3_XXS", "IQ3_XXS", "IQ3_XXS"),
    ("IQ3_S", "IQ3_S", "IQ3_S"),
]


def entries(kind):
    """The packed entries, from the table as the package unpacks it."""
    kind.init_grid()
    entries, width = kind.grid_shape
    bits = 16 // width
    index = {value: i for i, value in enumerate(kind.grid_map)}
    table = kind.grid.reshape(entries, width)
    return [sum(index[int(v)] << (bits * i) for i, v in enumerate(row)) for row in table]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    check = args.parse_args().check
    text = HEAD
    for name, kind, formats in BOOKS:
        packed = entries(getattr(quants, kind))
        text += f"\n/// The entries of {formats}.\n#[rustfmt::skip]\npub(super) static {name}: [u16; {len(packed)}] = [\n"
        for at in range(0, len(packed), 14):
            text += "    " + " ".join(f"0x{v:04x}," for v in packed[at : at + 14]) + "\n"
        text += "];\n"
    if check:
        assert OUT.read_text() == text, f"{OUT.name} differs"
    else:
        OUT.write_text(text)
    print(f"{OUT.name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
