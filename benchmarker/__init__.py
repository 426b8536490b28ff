"""benchmarker: which quantization should I run on my GPU, and why is it fast or slow?

The public names are loaded when they are first used: `import benchmarker` brings neither torch nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarker.core.errors import BenchmarkerError as BenchmarkerError
    from benchmarker.engines.generator import Generator as Generator
    from benchmarker.hardware.device import find_device as find_device
    from benchmarker.quantization.load import load_model as load_model
    from benchmarker.report.compare import compare as compare
    from benchmarker.report.run_summary import read_record as read_record
    from benchmarker.schema.job import Procedure as Procedure
    from benchmarker.workloads.generation.source_benchmarker import ModelBenchmarker as ModelBenchmarker
    from benchmarker.workloads.generation.spec import Grid as Grid

__version__ = "0.1.0"

_HOMES = {
    "BenchmarkerError": "core.errors",
    "Generator": "engines.generator",
    "Grid": "workloads.generation.spec",
    "ModelBenchmarker": "workloads.generation.source_benchmarker",
    "Procedure": "schema.job",
    "compare": "report.compare",
    "find_device": "hardware.device",
    "load_model": "quantization.load",
    "read_record": "report.run_summary",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'benchmarker' has no attribute '{name}'")
    return getattr(import_module(f"benchmarker.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
