"""Loading of the two-layer test model in any quantization, and inspection of the result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarker.checkpoints.base import Checkpoint, Silent, Target
from benchmarker.engines.decoders.native import native_decoder
from benchmarker.engines.decoders.torch_engine import TorchDecoder
from benchmarker.hardware.device import CpuDevice
from benchmarker.quantization.base import Loaded
from benchmarker.quantization.load import find_checkpoint, load_facts, load_quantized, prepare_checkpoint
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.base import Scalar
from benchmarker.schema.model import LoadFacts, ModelSpec
from benchmarker.workloads.generation.spec import VariantSpec

EMBEDDING = 2048 * 128
LINEARS = 2 * (128 * 128 + 2 * 128 * 64 + 128 * 128 + 3 * 128 * 256)
NORMS = 2 * (2 * 128 + 2 * 64) + 128
PARAMETERS = EMBEDDING + LINEARS + NORMS
ROPE_BYTES = 2 * 32 * 4
"""Bytes of the rotary frequencies in 32 bits: a buffer and its copy."""


class Log:
    """Progress that stores its steps and notes."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []
        self.notes: list[str] = []

    def step(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))

    def note(self, text: str) -> None:
        self.notes.append(text)


def prepare(
    model: Path | str,
    quant: str,
    log: Log | None = None,
    *,
    dummy: bool = False,
    dtype: str = "float16",
    **options: Scalar,
) -> Checkpoint:
    spec = ModelSpec(id=str(model), load_format="dummy" if dummy else "auto", dtype=dtype)
    variant = VariantSpec(name=quant, quant=quant, options=options)
    checkpoint = find_checkpoint(spec, variant, progress=log, device="cpu")
    return prepare_checkpoint(checkpoint, variant, spec.dtype, CpuDevice(), log or Silent())


def load(model: Path | str, quant: str, *, dummy: bool = False, dtype: str = "float16", **options: Scalar) -> Loaded:
    checkpoint = prepare(model, quant, dummy=dummy, dtype=dtype, **options)
    return load_quantized(quant, checkpoint, LOADERS[quant].options(**options), Target("cpu", dtype))


def facts_of(loaded: Loaded) -> LoadFacts:
    return load_facts(loaded, load_s=1.0, peak_bytes=None)


@torch.no_grad()
def logits(loaded: Loaded) -> torch.Tensor:
    return loaded.model(torch.arange(10, 30)[None]).logits.float()


def distance(first: Loaded, second: Loaded) -> float:
    return float((logits(first) - logits(second)).norm() / logits(second).norm())


def tokens_of(runtime: TorchDecoder, prompt: torch.Tensor, new_tokens: int) -> list[list[int]]:
    """Return the tokens of the second generation, which follows the setup."""
    runtime.generate(prompt, new_tokens)
    return [list(row) for row in runtime.generate(prompt, new_tokens).tokens]


plain_native_decoder = partial(native_decoder, prefill="plain")
"""Create the native decoder with prefill=plain."""


def with_uneven_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Give norms random weights. With equal weights a missing norm would not change the order of the logits."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.5)
    return model.eval()
