"""Quantizations that run on this machine, by engine: derived from its properties, or tried on a two-layer model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.files import shipped_shape
from benchmarker.checkpoints.gguf_file import write_gguf
from benchmarker.core.errors import BenchmarkerError, DeviceError
from benchmarker.engines.base import NEEDS_GPU
from benchmarker.engines.registry import MODEL_ENGINES
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import check_supported
from benchmarker.quantization.registry import LOADERS
from benchmarker.quantization.stored_formats import STORED_LOADERS
from benchmarker.schema.base import DType

FIRST_ENGINE = "eager"  # Engine that is tried first. A quantization that fails in it is not tried in other engines.


@dataclass(frozen=True)
class Outcome:
    variant: str
    way: str  # Name of the engine.
    reason: str | None  # Reason why the quantization does not run, with the remedy; None if it runs.
    is_for_others: bool = False  # True if the quantization only runs on other kinds of devices.


def look(machine: Any, device: Device) -> Iterator[Outcome]:
    """Yield an outcome for each quantization and engine without running them; `checkpoint_table.py` covers stored
    formats. `machine`: the doctor's facts, with `environment`, `has_triton` and `compiler`."""
    for quant, loader in LOADERS.items():
        if quant in STORED_LOADERS:
            continue
        missing: str | None = None
        is_for_others = False
        try:
            check_supported(loader, loader.options(), Target(device.torch_name, dtype_for(quant, device)))
        except BenchmarkerError as error:
            missing, is_for_others = str(error), isinstance(error, DeviceError)
        for engine in MODEL_ENGINES:
            yield Outcome(quant, engine, missing or _why_no_engine(engine, machine), is_for_others)


def run_arguments(outcome: Outcome, device: Device, *, model: Path, folder: Path) -> list[str]:
    """Return the arguments of a run that tries an outcome and writes its record to `folder`/records.

    The run loads `model` with random weights, or the small shipped model for a GGUF quantization.
    """
    of_gguf = outcome.variant == "gguf"
    return [
        *(("--model", _gguf_file(folder)) if of_gguf else ("--model", str(model), "--load-format", "dummy")),
        *("--device", device.torch_name),
        *("--dtype", dtype_for(outcome.variant, device)),
        *("--quant", outcome.variant, "--engine", outcome.way),
        *("--prompt-tokens", "8", "--new-tokens", "4", "--runs", "1", "--warmup", "1"),
        *("--no-profile", "--quiet", "--output", str(folder / "records")),
    ]


def dtype_for(quant: str, device: Device) -> DType:
    dtype: DType = "bfloat16" if device.kind == "cpu" else "float16"
    dtypes = LOADERS[quant].dtypes
    return dtype if dtype in dtypes else dtypes[0]


def _why_no_engine(engine: str, machine: Any) -> str | None:
    on_gpu = machine.environment.device.kind != "cpu"
    if engine in NEEDS_GPU and not on_gpu:
        return NEEDS_GPU[engine]
    if engine in ("compile", "native") and on_gpu and not machine.has_triton:
        return "needs Triton: pip install triton"
    if engine in ("compile", "native") and machine.compiler is None:
        return "needs a C++ compiler: apt-get install g++"
    return None


def _gguf_file(folder: Path) -> str:
    path, shipped = folder / "qwen3-small.gguf", shipped_shape("qwen3-small")
    assert shipped
    if not path.exists():
        write_gguf(shipped, path)
    return str(path)


@contextmanager
def two_layers() -> Iterator[tuple[Path, Path]]:
    """Yield a folder with the shape of a two-layer model and an empty folder; delete both afterwards."""
    shape = shipped_shape("qwen3-tiny")
    assert shape
    with tempfile.TemporaryDirectory(prefix="benchmarker-doctor-") as name:
        model = Path(name, "two-layers")
        model.mkdir()
        for path in shape.iterdir():
            (model / path.name).write_bytes(path.read_bytes())
        config = json.loads((shape / "config.json").read_text())
        config |= {"num_hidden_layers": 2, "max_window_layers": 2}
        config.pop("layer_types", None)
        (model / "config.json").write_text(json.dumps(config))
        yield model, Path(name)
