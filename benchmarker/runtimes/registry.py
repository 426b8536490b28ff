"""How tokens can be produced: a new runtime is one file beside this one and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarker.hardware.device import Device
from benchmarker.runtimes.base import Runtime
from benchmarker.runtimes.compiled import CompiledRuntime
from benchmarker.runtimes.eager import EagerRuntime
from benchmarker.runtimes.graph import GraphRuntime

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RUNTIMES: dict[str, Callable[[PreTrainedModel, Device], Runtime]] = {
    "eager": EagerRuntime,
    "graph": GraphRuntime,
    "compile": CompiledRuntime,
}
