"""Base of the engines whose programs run in an environment of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.engines.base import Form
from benchmarker.engines.external.environment_specs import DRIVERS, EngineError
from benchmarker.engines.external.environments import Marker, environment_states, ready_environment
from benchmarker.engines.external.source import ExternalSource
from benchmarker.engines.external.subprocess_engine import Driver, SubprocessEngine
from benchmarker.hardware.find_gpu import find_gpu
from benchmarker.quantization.output_layer import asks_for_head
from benchmarker.schema.external_facts import ExternalFacts
from benchmarker.schema.model_facts import LoadFacts

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device


class ExternalEngine(SubprocessEngine):
    """An engine with a driver in external/drivers and an environment in external/environment_specs."""

    limit_s = 1800.0
    """The first start of vLLM on a new machine compiles for minutes."""

    def installed(self) -> str | None:
        """None where an environment is ready, for whatever device."""
        states = [state for state in environment_states() if state.spec.engine == self.name]
        if any(state.problem is None for state in states):
            return None
        touched = [state.problem for state in states if state.folder.exists()]
        ways = " or ".join(f"'benchmarker engine install {state.spec.name}' ({state.spec.device})" for state in states)
        return touched[0] if touched else f"it has no environment: {ways} makes one"

    def command(self, form: Form) -> Sequence[str]:
        """Interpreter and driver of the environment for the CPU; `open` picks the device's."""
        del form
        return self._command(ready_environment(self.name, "cpu").interpreter)

    def _command(self, marker: Marker) -> list[str]:
        driver = DRIVERS / f"{self.name.replace('-', '_')}_driver.py"
        # Isolated: neither PYTHONPATH nor packages of the user's home come between an environment and its pins.
        return [marker.python, "-I", str(DRIVERS / "driver_loop.py"), str(driver)]

    def arguments(self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress) -> Any:
        """What the driver's `open` is given, and fields of ExternalFacts that only this side knows."""
        raise NotImplementedError

    def prove(self, form: Form, checkpoint: Checkpoint, source: ExternalSource) -> None:
        """Check, once the model is open, that it is what the row's label says.

        Raises:
            UnsupportedError: It is not.
        """

    def loaded(self, checkpoint: Checkpoint, facts: ExternalFacts, *, load_s: float) -> LoadFacts | None:
        """What loading cost and made; None where the engine does not tell enough.

        Args:
            load_s: Seconds that the engine took.
        """
        del checkpoint, facts, load_s
        return None

    @contextmanager
    def open(self, checkpoint: Checkpoint, form: Form, device: Device, progress: Progress) -> Iterator[ExternalSource]:
        """See Engine.open."""
        if device.kind == "rocm":
            raise EngineError(f"{self.name}: no environment for ROCm is shipped; run it on CUDA or the CPU")
        state = ready_environment(self.name, device.kind)
        arguments, fields = self.arguments(checkpoint, form, device, state.interpreter, progress)
        progress.note(f"{self.name}: opening {checkpoint.model_id} in a process of its own")
        growth_bytes = growth_of(device)
        driver = Driver(self.name, self._command(state.interpreter), on_gpu=device.kind != "cpu")
        try:
            opened = driver.ask("open", limit_s=self.limit_s, **arguments)
            source = ExternalSource(
                self.name,
                driver,
                limit_s=self.limit_s,
                environment=state.spec.name,
                fields=fields,
                growth_bytes=growth_bytes,
            )
            self.prove(form, checkpoint, source)
            source.loaded = self.loaded(checkpoint, source.external_facts(), load_s=opened["load_s"])
            yield source
        finally:
            driver.close()


def head_refusal(form: Form) -> str | None:
    """Why an engine with forms of its own cannot open this one: its output layer is asked for in int8 by torchao."""
    if not asks_for_head(form.options):
        return None
    return "lm_head=int8 is torchao's, for the engines that run here: eager, compile, cuda_graph and native"


def growth_of(device: Device) -> Callable[[], int | None] | None:
    """A function that gives the growth of a GPU's memory from now on; None on the CPU.

    Raises:
        EngineError: The card's driver does not tell, so that the memory of another process could not be known.
    """
    if device.kind == "cpu":
        return None
    gpu = find_gpu(device)
    before_bytes = gpu.used_bytes() if gpu else None
    if gpu is None or before_bytes is None:
        raise EngineError("the driver does not tell the GPU's memory, so that an engine's own could not be measured")

    def growth_bytes() -> int | None:
        used_bytes = gpu.used_bytes()
        return None if used_bytes is None else used_bytes - before_bytes

    return growth_bytes
