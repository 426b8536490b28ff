"""Model with random weights and its decoder, for benchmarks of torch.compile."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from benchmarker.engines.decoders.static_decoder import StaticCacheDecoder
from benchmarker.hardware.device import Device
from benchmarker.quantization.load import load_model
from benchmarker.schema.config_io import parse_option
from tests.engines.test_engines_graph import Rerun


def parser_for(description: str, *, new_tokens: int) -> argparse.ArgumentParser:
    """Return a parser with options for model, device and number of new tokens."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--quant", default="fp16")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--new-tokens", type=int, default=new_tokens)
    return parser


def load(options: argparse.Namespace) -> PreTrainedModel:
    """Load the model that the options of `parser_for` specify."""
    return load_model(
        options.model,
        options.quant,
        device=options.device,
        dtype=options.dtype,
        load_format="dummy",
        options=dict(parse_option(one) for one in options.option),
    )


def decoder_of(
    kind: Callable[..., StaticCacheDecoder], model: PreTrainedModel, device: Device, **settings: Any
) -> StaticCacheDecoder:
    """Return a decoder. On a CPU, each step is executed again instead of replaying a CUDA graph.

    Args:
        settings: Settings of inductor that override the decoder's.
    """
    capture: Any = Rerun() if device.kind == "cpu" else None
    decoder: Any = kind(model, device, capture=capture)
    if settings:
        decoder.step.settings = settings
    return decoder
