"""Writes tests/fixtures/ops/rope_tables.safetensors: inverse frequencies and factors of the rotary scalings.

The witness is transformers' own code, which works in float32: an answer differs from the exact one by a few units in
the last place. Needs: numpy, torch, safetensors, transformers 5.

    python tests/oracle/rope_tables.py            # writes the file
    python tests/oracle/rope_tables.py --check    # fails if the committed file would change
"""

import argparse
import copy

import torch
from transformers import LlamaConfig, PhiConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

from store import File

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn"}

# Head dimension, base, share of it that rotates, maximum positions, scaling as config.json of a hub model words it.
CASES = {
    "default": (64, 10000.0, 1.0, 2048, None),
    "default_large_base": (128, 1000000.0, 1.0, 32768, None),
    "default_partial": (80, 10000.0, 0.4, 2048, None),
    "linear": (64, 10000.0, 1.0, 8192, {"rope_type": "linear", "factor": 4.0}),
    "linear_gemma3": (256, 1000000.0, 1.0, 131072, {"rope_type": "linear", "factor": 8.0}),
    "linear_partial": (64, 10000.0, 0.25, 8192, {"rope_type": "linear", "factor": 2.5}),
    "linear_old_key": (64, 10000.0, 1.0, 8192, {"type": "linear", "factor": 2.0}),
    "llama3_8b": (128, 500000.0, 1.0, 131072, {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192}),
    "llama3_1b": (64, 500000.0, 1.0, 131072, {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}),
    "llama3_small": (16, 500000.0, 1.0, 512, {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 64}),
    "llama3_odd": (
        96,
        10000.0,
        1.0,
        4096,
        {
            **LLAMA3,
            "factor": 3.5,
            "low_freq_factor": 2.0,
            "high_freq_factor": 9.0,
            "original_max_position_embeddings": 1000,
        },
    ),
    "yarn": (128, 1000000.0, 1.0, 131072, {**YARN, "factor": 4.0, "original_max_position_embeddings": 32768}),
    "yarn_small": (16, 10000.0, 1.0, 512, {**YARN, "factor": 4.0, "original_max_position_embeddings": 64}),
    "yarn_betas": (
        64,
        10000.0,
        1.0,
        65536,
        {**YARN, "factor": 16.0, "beta_fast": 24.0, "beta_slow": 2.0, "original_max_position_embeddings": 4096},
    ),
    "yarn_attention_factor": (
        64,
        150000.0,
        1.0,
        131072,
        {**YARN, "factor": 32.0, "attention_factor": 1.25, "original_max_position_embeddings": 4096},
    ),
    "yarn_mscale": (
        64,
        10000.0,
        1.0,
        163840,
        {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
    ),
    "yarn_mscale_equal": (
        64,
        10000.0,
        1.0,
        163840,
        {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
    ),
    "yarn_untruncated": (
        64,
        150000.0,
        1.0,
        131072,
        {**YARN, "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
    ),
    "yarn_partial": (
        128,
        10000.0,
        0.5,
        16384,
        {**YARN, "factor": 4.0, "original_max_position_embeddings": 4096},
    ),
    "yarn_factor_one": (32, 10000.0, 1.0, 4096, {**YARN, "factor": 1.0, "original_max_position_embeddings": 4096}),
}


def table(head_dim, theta, partial, positions, scaling):
    kind, embedding = (PhiConfig, PhiRotaryEmbedding) if partial != 1 else (LlamaConfig, LlamaRotaryEmbedding)
    config = kind(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=positions,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": theta,
            "partial_rotary_factor": partial,
            **copy.deepcopy({("rope_type" if k == "type" else k): v for k, v in (scaling or {}).items()}),
        },
    )
    if scaling is None:
        return embedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, "cpu")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    f = File("rope_tables")
    for name, (head_dim, theta, partial, positions, scaling) in CASES.items():
        inv_freq, factor = table(head_dim, theta, partial, positions, scaling)
        assert inv_freq.dtype == torch.float32 and inv_freq.shape == (int(head_dim * partial) // 2,)
        params = {
            "head_dim": head_dim,
            "rope_theta": theta,
            "partial_rotary_factor": partial,
            "max_position_embeddings": positions,
            "rope_scaling": scaling,
            "attention_factor": factor,
        }
        f.case(name, params, inv_freq=inv_freq)
    f.finish(args.parse_args().check)


if __name__ == "__main__":
    main()
