"""A model with random weights and a decoder for it, for benchmarks of what torch's compiler makes."""

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
    """Options that say which model, where, and how long it generates."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen3-4B")
    parser.add_argument("--quant", default="fp16")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--new-tokens", type=int, default=new_tokens)
    return parser


def load(given: argparse.Namespace) -> PreTrainedModel:
    """The model that the options of `parser_for` ask for."""
    return load_model(
        given.model,
        given.quant,
        device=given.device,
        dtype=given.dtype,
        load_format="dummy",
        options=dict(parse_option(one) for one in given.option),
    )


def decoder_of(
    kind: Callable[..., StaticCacheDecoder], model: PreTrainedModel, device: Device, **settings: Any
) -> StaticCacheDecoder:
    """A decoder that runs on a CPU too: each step runs again there, in place of a graph.

    Args:
        settings: Of inductor, over those that the decoder chooses itself.
    """
    capture: Any = Rerun() if device.kind == "cpu" else None
    decoder: Any = kind(model, device, capture=capture)
    if settings:
        decoder.step.settings = settings
    return decoder
