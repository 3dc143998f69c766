"""Compares a built program with transformers on tiny random checkpoints of every family, whose flags are drawn at random.

    python tests/oracle/model_flags.py PROGRAM [--count N] [--seed S] [FAMILY ...]

Nothing is kept: each checkpoint is made in a temporary folder, run by transformers in float32 and by `PROGRAM logits
--precision exact`, and both logits compared within the bound of tests/goldens/README.md. A line a case; the exit status is
not 0 when one differs, when the program refuses what transformers computes, or computes what is in REFUSED. The fixtures of
model_variants.py are the part of this that every test run can afford. Needs what requirements.txt lists.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from model_variants import fill, run
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

PROMPT = 40
# Grouped products of the experts want rows of whole 16 bytes.
PLAIN = {"attn_implementation": "eager", "experts_implementation": "eager"}
ACTIVATIONS = ["silu", "swish", "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh",
               "gelu_python_tanh", "sigmoid"]
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe",
           "gemma3_text": "Gemma3", "lfm2": "Lfm2"}


class Draw(random.Random):
    """Draws the values of a configuration."""

    def maybe(self, config, key, *values, chance=0.5):
        """Sets a key to one of the values, or leaves it out."""
        if self.random() < chance:
            config[key] = self.choice(values)

    def number(self, least, most):
        return round(self.uniform(least, most), 3)

    def scaling(self, dims, context, kinds=("linear", "dynamic", "llama3", "yarn", "longrope")):
        """An object of rotary parameters with a scaling."""
        kind = self.choice(kinds)
        rope = {self.choice(["rope_type", "rope_type", "type"]): kind}
        if kind != "longrope":
            rope["factor"] = self.choice([1.0, 2, 4.0, 8.0, self.number(1, 40)])
        if kind in ("llama3", "yarn", "longrope"):
            rope["original_max_position_embeddings"] = self.choice([64, 100, context // 2])
        if kind == "llama3":
            rope["low_freq_factor"] = self.choice([1.0, self.number(0.2, 2)])
            rope["high_freq_factor"] = self.choice([4.0, self.number(2.5, 40)])
        if kind == "yarn":
            self.maybe(rope, "beta_fast", 32, 32.0, self.number(4, 50), chance=0.3)
            self.maybe(rope, "beta_slow", 1, 1.0, self.number(0.1, 4), chance=0.3)
            self.maybe(rope, "attention_factor", self.number(0.5, 2), chance=0.3)
            self.maybe(rope, "mscale", 1.0, self.number(0.1, 2), chance=0.3)
            self.maybe(rope, "mscale_all_dim", 1.0, self.number(0.1, 2), chance=0.3)
        if kind == "longrope":
            for name, most in [("short_factor", 3), ("long_factor", 30)]:
                rope[name] = [self.number(1, most) for _ in range(dims // 2)]
            self.maybe(rope, "attention_factor", self.number(0.5, 2), chance=0.3)
            self.maybe(rope, "factor", self.number(1, 8), chance=0.3)
        return rope

    def theta(self):
        return self.choice([10000.0, 10000, 500000.0, 1e6, self.number(20, 5000)])

    def base(self, family):
        """What all families have: extents that are no powers of two, and heads that may be wider than hidden / heads."""
        kv = self.choice([1, 2, 3])
        heads = kv * self.choice([1, 2, 3])
        self.dims = 2 * self.randint(2, 12)
        hidden = heads * self.dims
        config = {"architectures": [CLASSES[family] + "ForCausalLM"], "model_type": family, "hidden_size": hidden,
                  "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": self.randint(50, 200),
                  "num_hidden_layers": self.randint(1, 5), "intermediate_size": self.randint(8, 90),
                  "max_position_embeddings": 256}
        if kv == heads and family in ("llama", "qwen2", "qwen3"):
            config["num_key_value_heads"] = self.choice([kv, None])
        config["torch_dtype"] = self.choice(["float32", "float16", "bfloat16"])
        self.maybe(config, "tie_word_embeddings", True, False, chance=0.7)
        self.maybe(config, "bos_token_id", 1)
        self.maybe(config, "eos_token_id", 2, [3, 4])
        self.maybe(config, "pad_token_id", 0, None)
        return config

    def head_dim(self, config, chance=0.5):
        if self.random() < chance:
            config["head_dim"] = self.dims = 2 * self.randint(2, 16)

    def rope(self, config):
        """The base and the scaling, in the old style or in that of transformers 5."""
        if self.random() < 0.4:
            rope = self.scaling(self.dims, 256) if self.random() < 0.6 else {"rope_type": "default"}
            config["rope_parameters"] = {**rope, "rope_theta": self.theta()}
            return
        self.maybe(config, "rope_theta", self.theta(), chance=0.7)
        if self.random() < 0.6:
            config["rope_scaling"] = self.scaling(self.dims, 256)
        else:
            self.maybe(config, "rope_scaling", None)

    def windows(self, config):
        """The window of Qwen, of some layers or by name."""
        self.maybe(config, "use_sliding_window", True, False, chance=0.8)
        self.maybe(config, "sliding_window", 1, 5, 16, 17, None, chance=0.8)
        self.maybe(config, "max_window_layers", 0, 1, 2, 9, chance=0.8)
        layers = config["num_hidden_layers"]
        slides = config.get("use_sliding_window") and config.get("sliding_window", 4096) is not None
        if config["model_type"] != "qwen3_moe" and self.random() < 0.4:
            kinds = ["full_attention", "sliding_attention"] if slides else ["full_attention"]
            config["layer_types"] = [self.choice(kinds) for _ in range(layers)]

    def llama(self):
        config = self.base("llama")
        self.head_dim(config)
        self.rope(config)
        self.maybe(config, "attention_bias", True, False)
        self.maybe(config, "mlp_bias", True, False)
        self.maybe(config, "hidden_act", *ACTIVATIONS)
        self.maybe(config, "rms_norm_eps", 1e-5, 1e-2)
        self.maybe(config, "pretraining_tp", 1, 2, chance=0.2)
        return config

    def mistral(self):
        config = self.base("mistral")
        self.head_dim(config)
        self.rope(config)
        self.maybe(config, "sliding_window", None, 1, 7, 16, 33, 4096, chance=0.9)
        self.maybe(config, "hidden_act", *ACTIVATIONS)
        self.maybe(config, "rms_norm_eps", 1e-5, 1e-2)
        return config

    def qwen2(self):
        config = self.base("qwen2")
        self.head_dim(config, chance=0.3)
        self.rope(config)
        self.windows(config)
        self.maybe(config, "hidden_act", *ACTIVATIONS)
        return config

    def qwen3(self):
        config = self.base("qwen3")
        self.dims = 128
        self.head_dim(config, chance=0.8)
        self.rope(config)
        self.windows(config)
        self.maybe(config, "attention_bias", True, False)
        self.maybe(config, "hidden_act", *ACTIVATIONS)
        return config

    def qwen3_moe(self):
        config = self.base("qwen3_moe")
        self.head_dim(config)
        self.rope(config)
        self.windows(config)
        experts, layers = self.randint(1, 9), config["num_hidden_layers"]
        config[self.choice(["num_experts", "num_local_experts"])] = experts
        config["num_experts_per_tok"] = self.randint(1, experts)
        config["moe_intermediate_size"] = self.randint(4, 40)
        self.maybe(config, "norm_topk_prob", True, False, chance=0.8)
        self.maybe(config, "decoder_sparse_step", 1, 2, 3)
        self.maybe(config, "mlp_only_layers", [], [0], [layers - 1], None)
        self.maybe(config, "attention_bias", True, False)
        self.maybe(config, "hidden_act", *ACTIVATIONS)
        self.maybe(config, "output_router_logits", True, False)
        return config

    def gemma3_text(self):
        config = self.base("gemma3_text")
        self.dims = 256
        self.head_dim(config, chance=0.9)
        config["num_hidden_layers"] = layers = self.randint(1, 8)
        self.maybe(config, "sliding_window", 1, 6, 16, 30, chance=0.9)
        self.maybe(config, "query_pre_attn_scalar", 16, 100, 256)
        self.maybe(config, "attention_bias", True, False)
        self.maybe(config, "hidden_activation", *ACTIVATIONS)
        if self.random() < 0.4:
            kinds = ["full_attention", "sliding_attention"]
            config["layer_types"] = [self.choice(kinds) for _ in range(layers)]
        self.maybe(config, "sliding_window_pattern", 1, 2, 3, 6, 9)
        if self.random() < 0.5:
            config["rope_parameters"] = parameters = {}
            for kind in ["full_attention", "sliding_attention"]:
                rope = self.scaling(self.dims, 256) if self.random() < 0.5 else {"rope_type": "default"}
                self.maybe(rope, "rope_theta", self.theta(), chance=0.8)
                parameters[kind] = rope
        else:
            self.maybe(config, "rope_theta", self.theta(), chance=0.7)
            self.maybe(config, "rope_local_base_freq", self.theta(), chance=0.7)
            if self.random() < 0.6:
                rope = self.scaling(self.dims, 256)
                # The old name of the kind alone scales in transformers 4 and not in 5: see REFUSED.
                config["rope_scaling"] = {"rope_type": rope.pop("type", None) or rope["rope_type"], **rope}
        return config

    def lfm2(self):
        config = self.base("lfm2")
        self.head_dim(config, chance=0.3)
        self.rope(config)
        layers = config["num_hidden_layers"]
        self.maybe(config, "conv_bias", True, False)
        self.maybe(config, "conv_L_cache", 2, 3, 4, 5)
        self.maybe(config, "norm_eps", 1e-6, 1e-3)
        self.maybe(config, "tie_embedding", True, False)
        if self.random() < 0.5:
            config["block_ff_dim"] = self.randint(8, 200)
        self.maybe(config, "block_auto_adjust_ff_dim", True, False)
        self.maybe(config, "block_ffn_dim_multiplier", 1.0, 1, self.number(0.5, 2))
        config["block_multiple_of"] = self.choice([1, 8, 20, 32])
        kinds = [self.choice(["conv", "full_attention"]) for _ in range(layers)]
        indices = [i for i, kind in enumerate(kinds) if kind != "conv"]
        how = self.random()
        if how < 0.8:
            config["layer_types"] = kinds
        if how > 0.5:
            config["full_attn_idxs"] = indices
        return config


def refused(family, key, value, **keys):
    return family, key, {**keys, key: value}


# Flags that change the results and have no code: the program must name them.
REFUSED = [
    refused("llama", "partial_rotary_factor", 0.5),
    refused("llama", "sliding_window", 8),
    refused("llama", "hidden_act", "relu2"),
    refused("llama", "layer_types", ["full_attention"]),
    refused("mistral", "attention_bias", True),
    refused("qwen2", "attention_bias", True),
    refused("qwen2", "layer_types", ["sliding_attention"], num_hidden_layers=1),
    refused("qwen3", "use_mrope", True),
    refused("qwen3_moe", "num_experts", 0),
    refused("gemma3_text", "final_logit_softcapping", 30.0),
    refused("gemma3_text", "attn_logit_softcapping", 50.0),
    refused("gemma3_text", "use_bidirectional_attention", True),
    refused("gemma3_text", "rope_scaling", {"type": "linear", "factor": 8.0}),
    refused("gemma3_text", "sliding_window", None, num_hidden_layers=1),
    refused("lfm2", "conv_L_cache", 1),
    refused("lfm2", "use_pos_enc", False),
    refused("lfm2", "layer_types", ["full_attention", "linear_attention"], num_hidden_layers=2),
]


def make(config, folder, generator):
    """Writes a checkpoint and gives transformers' logits for a prompt, and how much noise of 1e-7 moves them."""
    (folder / "config.json").write_text(json.dumps(config))
    made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), **PLAIN).eval()
    fill(made, generator)
    made.tie_weights()
    with tempfile.TemporaryDirectory() as temporary:
        made.to(getattr(torch, config["torch_dtype"])).save_pretrained(temporary)
        tensors = load_file(Path(temporary) / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **PLAIN).eval()
    prompt = torch.randint(0, config["vocab_size"], (PROMPT,), generator=generator)
    logits = run(model, prompt)["logits"]
    for p in model.parameters():
        p.data.mul_(1 + 1e-7 * torch.randn(p.shape, generator=generator))
    return prompt.tolist(), logits, float((run(model, prompt)["logits"] - logits).abs().max())


def ask(program, folder, prompt):
    """The program's logits, or what it said instead."""
    ids = ",".join(map(str, prompt))
    out = subprocess.run([program, "logits", "-m", folder, "--ids", ids, "--precision", "exact", "--format", "json"],
                         capture_output=True, text=True)
    return (torch.tensor(json.loads(out.stdout)["logits"]), "") if out.returncode == 0 else (None, out.stderr.strip())


def check(program, config, seed):
    """One line on a configuration, and whether it is well."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        try:
            prompt, want, noise = make(config, folder, torch.Generator().manual_seed(seed))
        except Exception as problem:
            return False, f"transformers cannot make it: {type(problem).__name__}: {problem}"
        got, said = ask(program, folder, prompt)
    if got is None:
        return False, f"refused: {said}"
    bound = 2e-5 * float(want.abs().max()) + 10 * noise
    error = float((got - want).abs().max())
    return error <= bound, f"{error / bound:.3f} of the bound"


def check_refused(program, family, key, keys):
    config = {**Draw(1).base(family), **keys}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        # As many tensors as layers, and as many bytes as the extents could need.
        tensors = {f"model.layers.{i}.any": torch.zeros(config["vocab_size"], 1024) for i in range(9)}
        save_file(tensors, Path(folder) / "model.safetensors")
        got, said = ask(program, folder, [1, 2])
    return got is None and key in said, said or "computed"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("program")
    arguments.add_argument("families", nargs="*")
    arguments.add_argument("--count", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_intermixed_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    failed = total = 0
    for family in given.families or CLASSES:
        for seed in range(given.seed, given.seed + given.count):
            config = getattr(Draw(f"{family} {seed}"), family)()
            well, said = check(given.program, config, seed)
            print(f"{'ok  ' if well else 'FAIL'} {family} {seed}: {said}{'' if well else ' ' + json.dumps(config)}",
                  flush=True)
            failed, total = failed + (not well), total + 1
    for family, key, keys in REFUSED:
        if family in (given.families or CLASSES):
            well, said = check_refused(given.program, family, key, keys)
            print(f"{'ok  ' if well else 'FAIL'} {family} without code for {key}: {said}", flush=True)
            failed, total = failed + (not well), total + 1
    print(f"{failed} of {total} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
