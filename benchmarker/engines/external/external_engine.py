"""Base of the engines whose programs run in an environment of their own.

An engine is a subclass here, a driver in external/drivers, an entry in `ENVIRONMENTS` and a file of pins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.engines.base import Form
from benchmarker.engines.external.driver_process import Driver
from benchmarker.engines.external.environments import (
    DRIVERS,
    EngineError,
    Marker,
    environment_states,
    ready_environment,
)
from benchmarker.engines.external.external_source import ExternalSource
from benchmarker.hardware.find_gpu import find_gpu
from benchmarker.quantization.base import Options, has_int8_head
from benchmarker.schema.model import ExternalFacts, LoadFacts

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device


class ExternalEngine:
    """An engine with a driver and an environment. A subclass gives names, arguments and checks."""

    name: str
    summary: str
    options: type[Options] = Options
    limit_s = 1800.0
    """Longest time of one request. The first start of vLLM on a new machine compiles for minutes."""

    def installed(self) -> str | None:
        """Return None if an environment is ready, for any device."""
        states = [state for state in environment_states() if state.spec.engine == self.name]
        if any(state.problem is None for state in states):
            return None
        touched = [state.problem for state in states if state.folder.exists()]
        ways = " or ".join(f"'benchmarker engine install {state.spec.name}' ({state.spec.device})" for state in states)
        return touched[0] if touched else f"it has no environment: {ways} makes one"

    def splits(self, form: Form) -> str | None:  # noqa: ARG002
        return "it is given one GPU here; use --engine eager or vllm"

    def takes(self, form: Form, checkpoint: Checkpoint) -> str | None:
        """Return None, or why this engine cannot open this checkpoint in this form."""
        raise NotImplementedError

    def marker(self, device: str) -> Marker:
        """Return the ready environment for a kind of device. Raises EngineError."""
        return ready_environment(self.name, device).interpreter

    def command(self, marker: Marker) -> list[str]:
        """Return interpreter, driver program and arguments."""
        driver = DRIVERS / f"{self.name.replace('-', '_')}_driver.py"
        # Isolated: neither PYTHONPATH nor packages in the user's home may override the environment's pins.
        return [marker.python, "-I", str(DRIVERS / "driver_loop.py"), str(driver)]

    def arguments(
        self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arguments of the driver's `open`, and fields of ExternalFacts that the driver cannot report."""
        raise NotImplementedError

    def prove(self, form: Form, checkpoint: Checkpoint, source: ExternalSource) -> None:
        """Check that the open model is what the row's label claims. Raises UnsupportedError."""

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:  # noqa: ARG002
        """Return cost and result of loading; None if the engine does not report enough."""
        return None

    @contextmanager
    def open(self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress) -> Iterator[ExternalSource]:
        """See Engine.open."""
        if device.kind == "rocm":
            raise EngineError(f"{self.name}: no environment for ROCm is shipped; run it on CUDA or the CPU")
        marker = self.marker(device.kind)
        arguments, fields = self.arguments(checkpoint, form, device, marker, progress)
        progress.note(f"{self.name}: opening {checkpoint.model_id} in a process of its own")
        growth_bytes = growth_of(device)
        driver = Driver(self.name, self.command(marker), on_gpu=device.kind != "cpu")
        try:
            opened = driver.request("open", limit_s=self.limit_s, **arguments)
            source = ExternalSource(
                self.name,
                driver,
                limit_s=self.limit_s,
                environment=marker.name,
                fields=fields,
                growth_bytes=growth_bytes,
            )
            self.prove(form, checkpoint, source)
            source.loaded = self.loaded(checkpoint, source.external_facts(), load_s=opened["load_s"])
            yield source
        finally:
            driver.close()


def head_refusal(form: Form) -> str | None:
    """Return why an engine with its own quantizations refuses `lm_head=int8`; None if it is not requested."""
    if not has_int8_head(form.options):
        return None
    return "lm_head=int8 is torchao's, for the engines that run here: eager, compile, cuda_graph and native"


def growth_of(device: Device) -> Callable[[], int | None] | None:
    """Return a function that measures the growth of a GPU's memory from now on; None on the CPU. Raises EngineError."""
    if device.kind == "cpu":
        return None
    gpu = find_gpu(device)
    before_bytes = gpu.used_bytes() if gpu else None
    if gpu is None or before_bytes is None:
        raise EngineError("the driver does not report the GPU's memory, so that an engine's own cannot be measured")

    def growth_bytes() -> int | None:
        used_bytes = gpu.used_bytes()
        return None if used_bytes is None else used_bytes - before_bytes

    return growth_bytes
