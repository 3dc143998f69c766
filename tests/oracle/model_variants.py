"""Writes tests/fixtures/models: tiny random checkpoints with the flags that the goldens leave at rest, and their answers.

Files and names are those of tests/goldens (see its README), float32 answers by transformers. Needs: torch, transformers,
safetensors.

    python tests/oracle/model_variants.py [CASE ...]
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "models"
PROMPT, GREEDY = 24, 6

BASE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80,
        "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 256}


def case(kind, class_name, drop=(), **keys):
    config = {"architectures": [class_name + "ForCausalLM"], "model_type": kind, **BASE, **keys}
    return {k: v for k, v in config.items() if k not in drop}


def llama(**keys):
    return case("llama", "Llama", **keys)


def qwen3_moe(**keys):
    return case("qwen3_moe", "Qwen3Moe", moe_intermediate_size=16, num_experts=6, num_experts_per_tok=3, **keys)


CASES = {
    # No num_key_value_heads: as many as query heads. A head wider than hidden / heads.
    "llama_biases": llama(drop=["num_key_value_heads"], attention_bias=True, mlp_bias=True, head_dim=12,
                          hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
    "llama_gelu": llama(hidden_act="gelu", rms_norm_eps=1e-3, rope_theta=500.0),
    "llama_rope_parameters": llama(rope_parameters={
        "rope_theta": 5000.0, "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 3.0, "original_max_position_embeddings": 32}),
    "llama_yarn_mscale": llama(rope_theta=2000.0, rope_scaling={
        "rope_type": "yarn", "factor": 6.0, "original_max_position_embeddings": 24, "beta_fast": 12.0,
        "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.4, "truncate": False}),
    "llama_yarn_factor": llama(rope_scaling={
        "type": "yarn", "factor": 3.0, "original_max_position_embeddings": 40, "attention_factor": 1.3}),
    "llama_dynamic": llama(rope_scaling={"type": "dynamic", "factor": 2.0}),
    "llama_longrope": llama(rope_scaling={
        "rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0, 1.2, 1.5, 2.5],
        "long_factor": [2.0, 3.0, 5.0, 9.0]}),
    "mistral_narrow": case("mistral", "Mistral", sliding_window=3, head_dim=16, num_key_value_heads=1,
                           rope_parameters={"rope_theta": 700.0, "rope_type": "linear", "factor": 2.0}),
    "qwen2_window": case("qwen2", "Qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=6,
                         max_window_layers=1),
    "qwen2_layer_types": case("qwen2", "Qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=5,
                              layer_types=["sliding_attention", "full_attention", "full_attention"],
                              tie_word_embeddings=True),
    # Heads wider than hidden / heads; null for as many KV heads as query heads.
    "qwen2_heads": case("qwen2", "Qwen2", head_dim=10, num_key_value_heads=None, use_sliding_window=True,
                        sliding_window=5, max_window_layers=0, hidden_act="gelu_fast"),
    "qwen3_biases": case("qwen3", "Qwen3", head_dim=10, attention_bias=True, use_sliding_window=True,
                         sliding_window=7, max_window_layers=1, rope_theta=1e6, rope_scaling={
                             "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    # Layer 0: dense by the step, 1: experts, 2: dense by the step, 3: dense by name.
    "qwen3_moe_mixed": qwen3_moe(num_hidden_layers=4, norm_topk_prob=False, decoder_sparse_step=2,
                                 mlp_only_layers=[3], attention_bias=True, tie_word_embeddings=True),
    "qwen3_moe_window": qwen3_moe(norm_topk_prob=True, head_dim=16, use_sliding_window=True, sliding_window=4,
                                  max_window_layers=2),
    # Seven layers: the default pattern makes the sixth a full one.
    "gemma3_biases": case("gemma3_text", "Gemma3", num_hidden_layers=7, head_dim=12, query_pre_attn_scalar=20,
                          sliding_window=5, attention_bias=True, rope_theta=3000.0, rope_local_base_freq=300.0,
                          rope_scaling={"rope_type": "linear", "factor": 8.0}),
    "gemma3_untied": case("gemma3_text", "Gemma3", num_hidden_layers=3, head_dim=8, query_pre_attn_scalar=8,
                          sliding_window=4, tie_word_embeddings=False, hidden_activation="silu",
                          layer_types=["full_attention", "sliding_attention", "full_attention"],
                          rope_parameters={"full_attention": {"rope_type": "yarn", "factor": 2.0,
                                                              "rope_theta": 9000.0,
                                                              "original_max_position_embeddings": 128},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 90.0}}),
    "lfm2_biases": case("lfm2", "Lfm2", num_hidden_layers=4, conv_bias=True, conv_L_cache=4,
                        full_attn_idxs=[1, 2], block_auto_adjust_ff_dim=False, block_ff_dim=44,
                        tie_embedding=False, norm_eps=1e-4),
    # No layer attends; the width in the key of transformers 5, and hardly rounded up.
    "lfm2_convs": case("lfm2", "Lfm2", num_hidden_layers=3, layer_types=["conv"] * 3, intermediate_size=70,
                       block_ffn_dim_multiplier=0.9, block_multiple_of=1,
                       tie_word_embeddings=False),
    "lfm2_widths": case("lfm2", "Lfm2", conv_L_cache=2, layer_types=["full_attention", "conv"],
                        block_ff_dim=70, block_ffn_dim_multiplier=1.3, block_multiple_of=20, rope_theta=400.0),
}


def fill(model, generator):
    """Random weights of a size at which attention, gates and routers all matter."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("norm.weight"):
            base = 0.0 if "Gemma" in type(model).__name__ else 1.0
            value = base + 0.2 * noise
        elif p.dim() == 1:
            value = 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            value = noise
        else:
            value = noise * (1.5 / p.shape[-1] ** 0.5)
        p.data.copy_(value)


def run(model, ids):
    """Logits and the hidden states around every layer, the whole prompt at once."""
    hidden = {}

    def before(i):
        return lambda module, args, kwargs: hidden.__setitem__(i, (args[0] if args else kwargs["hidden_states"])[0])

    def after(i):
        return lambda module, args, out: hidden.__setitem__(i, (out[0] if isinstance(out, tuple) else out)[0])

    layers = model.model.layers
    hooks = [layers[0].register_forward_pre_hook(before(0), with_kwargs=True)]
    hooks += [layer.register_forward_hook(after(i + 1)) for i, layer in enumerate(layers)]
    with torch.no_grad():
        final = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        logits = model.lm_head(final)
    for hook in hooks:
        hook.remove()
    out = {f"hidden.{i}": v.clone().contiguous() for i, v in hidden.items()}
    return {**out, "hidden.final": final.contiguous(), "logits": logits.contiguous()}


def greedy(model, ids):
    ids = ids.tolist()
    for _ in range(GREEDY):
        ids.append(int(run(model, torch.tensor(ids))["logits"][-1].argmax()))
    return ids[-GREEDY:]


def write(name, config):
    seed = sum(map(ord, name))
    generator = torch.Generator().manual_seed(seed)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    parsed = AutoConfig.from_pretrained(folder)
    made = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager").eval()
    fill(made, generator)
    made.tie_weights()
    with tempfile.TemporaryDirectory() as temporary:
        made.half().save_pretrained(temporary)
        tensors = load_file(Path(temporary) / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = torch.randint(0, config["vocab_size"], (PROMPT,), generator=generator)
    answers = run(model, prompt)
    ids = greedy(model, prompt)
    for p in model.parameters():
        p.data.mul_(1 + 1e-7 * torch.randn(p.shape, generator=generator))
    noise = (run(model, prompt)["logits"] - answers["logits"]).abs().max()
    save_file(answers, folder / "expected.safetensors")
    notes = {"input_ids": prompt.tolist(), "greedy_ids": ids, "logit_absmax": float(answers["logits"].abs().max()),
             "noise_1e-07": float(noise)}
    (folder / "expected.json").write_text(json.dumps(notes) + "\n")
    print(name, notes["logit_absmax"], notes["noise_1e-07"])


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        write(name, CASES[name])
