"""Compare GPTQ with round-to-nearest at the same bits and group size, on the small model.

    python tests/benchmarks/calibration.py                 4 bits in groups of 128, the whole text
    python tests/benchmarks/calibration.py --bits 3 --size quick

Round-to-nearest uses the same codes as GPTQ: symmetric around zero, with one 16-bit scale per group. GPTQ is calibrated
on the text that ships with benchmarker; both are scored on the held-out evaluation text. Takes about a minute on two
cores.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarker.checkpoints.base import Silent
from benchmarker.checkpoints.dummy import packable_linears
from benchmarker.checkpoints.read_model import load_tokenizer
from benchmarker.hardware.device import find_device
from benchmarker.quality.judge import BASELINE, Plan, make_plan
from benchmarker.quality.scoring import SavedPredictions, divergence, predictions, score_against
from benchmarker.quantization.load import find_checkpoint, load_model
from benchmarker.schema.model import ModelSpec
from benchmarker.schema.quality import QualitySpec

MODEL = "qwen3-small"
DTYPE = "bfloat16"


class Outcome(NamedTuple):
    """Quality of one quantization method."""

    perplexity: float
    baseline_perplexity: float
    kl: float
    ln_ratio: float
    ln_ratio_error: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=4, choices=(2, 3, 4, 8))
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--size", default="full", choices=("quick", "full"))
    options = parser.parse_args()
    by_method = outcomes(bits=options.bits, group_size=options.group_size, size=options.size)
    fp16_perplexity = by_method["GPTQ"].baseline_perplexity
    print(f"{MODEL}, {options.bits} bits in groups of {options.group_size}; fp16 {fp16_perplexity:.3f}")
    for name, outcome in by_method.items():
        change = f"{100 * math.expm1(outcome.ln_ratio):+.2f} ± {100 * outcome.ln_ratio_error:.2f} %"
        print(f"{name:16} perplexity {outcome.perplexity:.3f} ({change}), KL divergence {outcome.kl:.5f}")


def outcomes(
    *, bits: int, group_size: int, size: Literal["quick", "full"], options: Mapping[str, Any] | None = None
) -> dict[str, Outcome]:
    """Return the outcomes of round-to-nearest and GPTQ, by name.

    Args:
        options: Further options of GPTQ.
    """
    nearest = load_model(MODEL, dtype=DTYPE, device="cpu")
    round_to_nearest(nearest, bits=bits, group_size=group_size)
    gptq_options = {"bits": bits, "group_size": group_size, **(options or {})}
    calibrated = load_model(MODEL, "gptq", dtype=DTYPE, device="cpu", options=gptq_options)
    return {"round-to-nearest": judge(nearest, size), "GPTQ": judge(calibrated, size)}


@torch.no_grad()
def round_to_nearest(model: nn.Module, *, bits: int, group_size: int) -> None:
    """Replace the weights that GPTQ would quantize, in place."""
    for linear in packable_linears(model).values():
        linear.weight.copy_(nearest_codes(linear.weight.float(), bits=bits, group_size=group_size))


def nearest_codes(weight: torch.Tensor, *, bits: int, group_size: int) -> torch.Tensor:
    """Return the quantized weights, [out_features, in_features], in float32.

    The codes are -2^(bits-1) ... 2^(bits-1)-1 times the group's scale, as GPTQ's with `sym`.
    """
    groups = weight.unflatten(-1, (-1, group_size))
    largest = groups.abs().amax(-1, keepdim=True)
    scale = (2 * largest / (2**bits - 1)).half().float().clamp_min(1e-8)
    codes = (groups / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (codes * scale).flatten(-2)


def make_shipped_plan(size: Literal["quick", "full"]) -> Plan:
    """Return the plan that scores the shipped text against the 16-bit model."""
    spec = ModelSpec(id=MODEL, dtype=DTYPE)
    checkpoint = find_checkpoint(spec, BASELINE)
    return make_plan(
        QualitySpec(size=size),
        spec,
        BASELINE,
        name="fp16",
        checkpoint=checkpoint,
        tokenizer=load_tokenizer(checkpoint),
        progress=Silent(),
    )


def perplexity_of(model: Any, size: Literal["quick", "full"]) -> float:
    """Return the perplexity of the shipped text, by one forward pass per window."""
    windows = make_shipped_plan(size).windows
    scored = predictions(model, windows, Silent(), range(len(windows.ids)), name="model")
    nats = [nn.functional.cross_entropy(logits.float(), targets) for _, logits, targets in scored]
    return math.exp(torch.stack(nats).mean())


def judge(model: Any, size: Literal["quick", "full"]) -> Outcome:
    """Score a model against the 16-bit model on the shipped text."""
    plan = make_shipped_plan(size)
    windows = plan.windows
    saved = SavedPredictions(np.zeros((len(windows.ids), plan.row_values), dtype=np.float32))
    for window, logits, targets in predictions(model, windows, Silent(), range(len(windows.ids)), name="model"):
        saved.put(window, logits, targets)
    baseline = load_model(MODEL, dtype=DTYPE, device=find_device("cpu").torch_name)
    scores = score_against(baseline, windows, saved, Silent(), range(len(windows.ids)), name="fp16", replace=False)
    difference = divergence(scores)
    assert difference.ln_ratio_error is not None
    return Outcome(
        perplexity=math.exp(scores.nats.mean()),
        baseline_perplexity=math.exp(scores.baseline_nats.mean()),
        kl=difference.kl_mean,
        ln_ratio=difference.ln_ratio,
        ln_ratio_error=difference.ln_ratio_error,
    )


if __name__ == "__main__":
    main()
