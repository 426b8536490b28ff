"""Which variants run here, in which runtime: looked at, or really tried on a two-layer model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarker.checkpoints.base import Target
from benchmarker.checkpoints.shipped_models import shipped_shape
from benchmarker.core.errors import BenchmarkerError, DeviceError
from benchmarker.doctor.machine import Machine
from benchmarker.engines.registry import ENGINES
from benchmarker.quantization.registry import LOADERS
from benchmarker.schema.base import DType

TRY_LIMIT_S = 600.0
"""GPTQ builds an extension when it is first used."""


@dataclass(frozen=True)
class Outcome:
    """One variant in one runtime."""

    quant: str
    runtime: str
    reason: str | None
    """Why it does not run, with what to do; None where it does."""
    is_for_others: bool = False
    """Whether this device has no code for it, so that nothing is in the way that could be mended."""


def look_at(machine: Machine, target: Target) -> Iterator[Outcome]:
    """What is clear without running anything."""
    for quant, loader in LOADERS.items():
        missing: str | None = None
        is_for_others = False
        try:
            loader.check(loader.options(), Target(target.device, _dtype_for(quant, target)))
        except BenchmarkerError as error:
            missing, is_for_others = str(error), isinstance(error, DeviceError)
        for runtime in ENGINES:
            yield Outcome(quant, runtime, missing or _why_no_runtime(runtime, machine), is_for_others)


def _dtype_for(quant: str, target: Target) -> DType:
    """The type that the machine is looked at in, or another where the quantization does not work with that."""
    dtypes = LOADERS[quant].dtypes
    return target.dtype if target.dtype in dtypes else dtypes[0]


def _why_no_runtime(runtime: str, machine: Machine) -> str | None:
    on_gpu = machine.environment.device.kind != "cpu"
    if runtime == "cuda_graph" and not on_gpu:
        return "a graph is captured on a GPU only; use --engine compile here"
    if runtime == "native" and not on_gpu:
        return "its kernels are written for a GPU; use --engine compile here"
    if runtime in ("compile", "native") and on_gpu and not machine.has_triton:
        return "needs Triton: pip install triton"
    if runtime in ("compile", "native") and machine.compiler is None:
        return "needs a C++ compiler: apt-get install g++"
    return None


def try_all(
    looked: list[Outcome],
    target: Target,
    *,
    say: Callable[[str], None],
    command: tuple[str, ...] = (sys.executable, "-m", "benchmarker.run"),
) -> Iterator[Outcome]:
    """Run those that nothing speaks against, each in a process of its own.

    What `generate` cannot run, no other runtime is tried with: they load it in the same way, and prefill with it.
    """
    failed: dict[str, str] = {}
    with two_layers() as (model, folder):
        for one in looked:
            reason = one.reason or failed.get(one.quant)
            if reason:
                yield replace(one, reason=reason)
                continue
            say(f"trying {one.quant}, {one.runtime}")
            arguments = [
                *("--model", str(model), "--load-format", "dummy", "--device", target.device),
                *("--dtype", _dtype_for(one.quant, target), "--quant", one.quant, "--engine", one.runtime),
                *("--prompt-tokens", "8", "--new-tokens", "4", "--runs", "1", "--warmup", "1"),
                *("--no-profile", "--quiet", "--output", str(folder / "records")),
            ]
            reason = _why_failed([*command, *arguments], folder)
            if reason and one.runtime == "eager":
                failed[one.quant] = reason
            yield Outcome(one.quant, one.runtime, reason)


def _why_failed(command: list[str], folder: Path) -> str | None:
    """The last line of a run that failed; None of one that did not."""
    environment = {**os.environ, "BENCHMARKER_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRY_LIMIT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {TRY_LIMIT_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), None) or _cell_reason(folder)
    if reason:
        return reason.removeprefix("error: ")
    return lines[-1][:300] if lines else f"it ended with {done.returncode}"


def _cell_reason(folder: Path) -> str | None:
    """From the newest record: why its cell is not ok."""
    records = sorted((folder / "records").glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        return None
    cells = json.loads(records[-1].read_text())["cells"]
    return next((str(cell["reason"]) for cell in cells if cell["status"] != "ok"), None)


@contextmanager
def two_layers() -> Iterator[tuple[Path, Path]]:
    """A folder with the shape of a two-layer model, and one for what trying it leaves behind; gone afterwards."""
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
