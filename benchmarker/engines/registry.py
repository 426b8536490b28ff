"""Engines by name. A new engine needs one file in this folder and one entry in `ENGINES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from benchmarker.core.errors import SpecError, did_you_mean
from benchmarker.engines.base import Engine
from benchmarker.engines.decoders.eager import EagerDecoder, EagerEngine, EagerOptions
from benchmarker.engines.decoders.torch_engine import TorchDecoder, TorchEngine
from benchmarker.engines.external.llama_cpp import LlamaCppEngine
from benchmarker.engines.external.sglang import SglangEngine
from benchmarker.engines.external.vllm import VllmEngine
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import Options

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Prefill = Literal["plain", "captured"]


class NativeOptions(Options):
    prefill: Prefill = "captured"
    """captured: prefill replays a graph, which is recorded at the first prompt of each padded length. plain: prefill
    launches the model's own kernels one by one."""


def _cuda_graph(model: PreTrainedModel, device: Device) -> TorchDecoder:
    from benchmarker.engines.decoders.static_decoder import cuda_graph_decoder

    return cuda_graph_decoder(model, device)


def _compile(model: PreTrainedModel, device: Device) -> TorchDecoder:
    from benchmarker.engines.decoders.compile import compile_decoder

    return compile_decoder(model, device)


def _native(model: PreTrainedModel, device: Device, *, prefill: Prefill = "captured") -> TorchDecoder:
    from benchmarker.engines.decoders.native import native_decoder

    return native_decoder(model, device, prefill=prefill)


ENGINES: dict[str, Engine] = {
    "eager": EagerEngine("eager", EagerDecoder, EagerOptions),
    "cuda_graph": TorchEngine("cuda_graph", _cuda_graph),
    "compile": TorchEngine("compile", _compile, packages=("torch._inductor.compile_fx",)),
    "native": TorchEngine("native", _native, NativeOptions),
    "llama-cpp": LlamaCppEngine(),
    "vllm": VllmEngine(),
    "sglang": SglangEngine(),
}
MODEL_ENGINES = tuple(name for name, engine in ENGINES.items() if isinstance(engine, TorchEngine))
"""Engines that run a transformers model in this process, in every quantization."""
HOST_BOUND_ENGINES = frozenset({"eager"})  # Engines whose decode steps are limited by Python, not by the GPU.


def torch_engine(name: str) -> TorchEngine:
    """Return an engine that runs a loaded transformers model. Raises SpecError."""
    engine = ENGINES.get(name)
    if not isinstance(engine, TorchEngine):
        raise SpecError(f"no engine '{name}' for a loaded model{did_you_mean(name, MODEL_ENGINES)}")
    return engine
