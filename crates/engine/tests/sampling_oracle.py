"""Writes sampling_oracle.json: what Hugging Face's logits processors keep, and at which probabilities.

    python sampling_oracle.py          # needs torch and transformers

The processors run in float64, and a case is drawn again when a cut falls within MARGIN of a token, so that rounding
decides nothing. Presence and frequency penalties, which transformers lacks, follow the definition of the OpenAI API.
"""

import json
import pathlib
import random

import numpy as np
import torch
import transformers
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCAB = 96
ROWS = 6
CASES = 120
MARGIN = 1e-5
ORDERS = {
    "transformers": ["temperature", "top_k", "top_p", "min_p"],
    "llama_cpp": ["top_k", "top_p", "min_p", "temperature"],
}


def f32(value):
    """The value as the option is stored."""
    return float(np.float32(value))


def warp(stage, case, scores):
    """One truncation or the temperature; None when a cut is too close to call."""
    value = case[stage]
    if value is None:
        return scores
    probabilities = torch.softmax(scores, -1)[0]
    if stage == "temperature":
        return TemperatureLogitsWarper(value)(None, scores)
    if stage == "top_k":
        return TopKLogitsWarper(value)(None, scores)
    if stage == "top_p":
        sums = probabilities.sort(descending=True).values.cumsum(-1)
        return None if ((sums - value).abs() < MARGIN).any() else TopPLogitsWarper(value)(None, scores)
    ratios = probabilities / probabilities.max()
    return None if ((ratios - value).abs() < MARGIN).any() else MinPLogitsWarper(value)(None, scores)


def solve(case, row):
    """Kept ids and their probabilities."""
    scores = torch.tensor([row], dtype=torch.float64)
    if case["logit_bias"]:
        scores = SequenceBiasLogitsProcessor({(i,): b for i, b in case["logit_bias"]})(
            torch.tensor([[0]]), scores
        ).to(torch.float64)
    history = torch.tensor([case["prompt"] + case["output"]])
    if history.numel():
        scores = RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])(history, scores)
    counts = torch.bincount(torch.tensor(case["output"], dtype=torch.long), minlength=VOCAB).to(torch.float64)
    scores = scores - case["presence_penalty"] * (counts > 0) - case["frequency_penalty"] * counts
    ordered = scores[0].sort().values
    if (ordered.diff() < MARGIN).any():
        return None
    for stage in ORDERS[case["stages"]]:
        scores = warp(stage, case, scores)
        if scores is None:
            return None
    probabilities = torch.softmax(scores, -1)[0]
    ids = [i for i in range(VOCAB) if scores[0, i] > -float("inf")]
    return ids, [float(f"{probabilities[i]:.7g}") for i in ids]


def draw_case(rng):
    """Random options; each is off about half of the time."""
    maybe = lambda make, off: make() if rng.random() < 0.5 else off
    tokens = lambda: [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]
    biased = maybe(lambda: rng.sample(range(VOCAB), rng.randrange(1, 5)), [])
    return {
        "row": rng.randrange(ROWS),
        "stages": rng.choice(list(ORDERS)),
        "temperature": f32(rng.choice([0.3, 0.7, 1.0, 1.5, 2.5])),
        "top_k": maybe(lambda: rng.choice([1, 2, 5, 20, 50]), None),
        "top_p": maybe(lambda: f32(rng.uniform(0.05, 0.99)), None),
        "min_p": maybe(lambda: f32(rng.uniform(0.01, 0.5)), None),
        "repetition_penalty": maybe(lambda: f32(rng.choice([0.8, 1.1, 1.3])), 1.0),
        "presence_penalty": maybe(lambda: f32(rng.uniform(-2, 2)), 0.0),
        "frequency_penalty": maybe(lambda: f32(rng.uniform(-1, 1)), 0.0),
        "logit_bias": [[i, f32(rng.uniform(-5, 5))] for i in biased],
        "prompt": maybe(tokens, []),
        "output": maybe(tokens, []),
    }


def main():
    rng = random.Random(20)
    rows = [[round(rng.gauss(0, 1.5 + i) * 1024) / 1024 for _ in range(VOCAB)] for i in range(ROWS)]
    cases = []
    while len(cases) < CASES:
        case = draw_case(rng)
        answer = solve(case, rows[case["row"]])
        if answer:
            cases.append(case | {"kept": answer[0], "probabilities": answer[1]})
    lines = lambda items: "[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in items) + "\n]"
    made_by = json.dumps(f"torch {torch.__version__}, transformers {transformers.__version__}")
    text = f'{{"made_by":{made_by},\n"rows":{lines(rows)},\n"cases":{lines(cases)}}}\n'
    json.loads(text)
    pathlib.Path(__file__).with_suffix(".json").write_text(text)


main()
