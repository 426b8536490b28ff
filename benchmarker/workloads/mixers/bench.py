"""The measuring of token mixers: an implementation made ready for a shape, proven, checked, then timed.

The order for each cell: one call, whose kernels a short profile names; output and gradients against float64; what lies
behind a position must not change what is before it; once in each process the lengths around a chunk's end; the memory
of both passes; then the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError
from benchmarker.measure.repeat import Step
from benchmarker.schema.record import RunRecord
from benchmarker.workloads.attention.bench import no_kernel_is_unsupported
from benchmarker.workloads.attention.precision import matmul_precision
from benchmarker.workloads.attention.proof import KEPT, kernels_of
from benchmarker.workloads.attention.record import AttentionSample, SeenKernel
from benchmarker.workloads.attention.timing import AttentionStep, memory_of_passes
from benchmarker.workloads.mixers.checking import Checking, Ready, results_of
from benchmarker.workloads.mixers.demand import demand_of, least_bytes
from benchmarker.workloads.mixers.inputs import copies_needed, inputs_sha256
from benchmarker.workloads.mixers.matching import block_facts
from benchmarker.workloads.mixers.record import MixersCell, MixersDemand, MixersFacts
from benchmarker.workloads.mixers.spec import MixersJob, MixersPoint, MixersSubject, shape_of
from benchmarker.workloads.mixers.variants.fla import refused_compiler_is_unsupported
from benchmarker.workloads.mixers.variants.registry import implementation_of, missing_module
from benchmarker.workloads.session import Nothing, Session

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

TRAINING = "training_step"


class MixersBench(Nothing):
    """Measures one implementation."""

    def __init__(
        self,
        subject: MixersSubject,
        variant: str,
        device: Device,
        *,
        cache_bytes: int | None = None,
        is_judged: bool = False,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._subject = subject
        self._implementation = implementation_of(variant)
        self._mixer = self._implementation.mixer
        self._device = device
        self._cache_bytes = cache_bytes
        self._is_judged = is_judged
        self._say = say
        # The cell that is measured now: its inputs may fill the device.
        self._ready: Ready | None = None
        self._checking = Checking(self._implementation, device, subject.seed)

    def facts(self) -> Mapping[str, Any]:
        """What is measured."""
        return {"built": MixersFacts(versions={name: version(name) for name in self._packages()})}

    def _packages(self) -> tuple[str, ...]:
        is_there = missing_module(self._implementation) is None
        return self._implementation.packages if is_there else ("torch",)

    def cell(self, point: MixersPoint) -> MixersCell:
        """What is known of a cell before it is measured."""
        self._ready = None
        shape = shape_of(self._subject, point)
        return MixersCell(
            status="ok",
            seq_len=point.seq_len,
            batch_size=point.batch_size,
            mode=point.mode,
            demand=self._demand(point),
            block=block_facts(self._mixer, self._subject, point.seq_len) if is_training(point) else None,
            least_bytes=least_bytes(self._mixer, shape, writes_scores=self._implementation.writes_scores),
            free_bytes=free_bytes(self._device),
            inputs_sha256=inputs_sha256(shape, self._device.torch_name, seed=self._subject.seed),
        )

    def _demand(self, point: MixersPoint) -> MixersDemand:
        if not is_training(point):
            return demand_of(self._mixer, shape_of(self._subject, point))
        from benchmarker.workloads.mixers.block import training_demand

        return training_demand(self._implementation, self._subject, point)

    def ready(self, point: MixersPoint) -> Ready:
        """Make inputs and implementation.

        Raises:
            UnsupportedError: It cannot run here.
        """
        shape = shape_of(self._subject, point)
        reason = self._implementation.unsupported(shape, self._device.kind)
        missing = missing_module(self._implementation)
        if missing and reason is None:
            reason = f"needs {missing}, which is not installed: {self._implementation.remedy}"
        if reason:
            raise UnsupportedError(reason)
        count = copies_needed(self._mixer, shape, self._cache_bytes, kind=self._device.kind)
        # A model's own tensors fill the cache: its mixer is checked on one copy, and not timed.
        count = 1 if is_training(point) else count
        copies = [self._checking.inputs(shape, self._subject.seed + number) for number in range(count)]
        return Ready(shape, self._implementation.open(shape, self._device.torch_name), copies)

    def correct(self, point: MixersPoint) -> Mapping[str, Any]:
        """The kernels of one call, its errors, and its memory.

        Raises:
            UnsupportedError: There is no kernel for it, or another implementation's kernel ran.
            WrongResultError: It computes something else than the mixer.
        """
        ready = self._ready = self.ready(point)
        step, first = AttentionStep(ready.operation, ready.copies, self._device), ready.copies[0]
        with no_kernel_is_unsupported(), refused_compiler_is_unsupported():
            results_of(ready.operation, first)  # compiles, tunes, and loads what is loaded once
        with ready.operation.around():
            kernels = kernels_of(lambda: step.work()(first), self._device)
        self._refuse_others(kernels)
        checked = self._checking.checked(ready)
        self._device.release()
        fields = {"kernels": kernels[:KEPT], "checked": checked}
        if is_training(point):
            return fields
        passes = memory_of_passes(ready.operation, first, self._device)
        return {**fields, "passes": passes, "input_copies": len(ready.copies)}

    def step(self, point: MixersPoint) -> Step[AttentionSample]:
        """What one repeat runs."""
        if is_training(point):
            from benchmarker.workloads.mixers.training import ModelStep

            self._ready = None
            return ModelStep(self._implementation, self._subject, point, self._device)
        ready = self._ready or self.ready(point)
        return AttentionStep(ready.operation, ready.copies, self._device)

    def measured(self, cell: MixersCell, step: Any, measured: Any) -> Mapping[str, Any]:  # noqa: ARG002
        """The memory of a training step's passes."""
        return {"passes": step.passes()} if cell.mode == TRAINING else {}

    def afterwards(self, record: RunRecord, path: Path) -> Mapping[str, Any]:  # noqa: ARG002
        """Models trained on the tasks that are asked for."""
        if not self._is_judged:
            return {}
        from benchmarker.workloads.mixers.training import scores

        self._ready = None
        return scores(self._implementation, self._subject, self._device, self._say)

    def _refuse_others(self, kernels: tuple[SeenKernel, ...]) -> None:
        """Raises UnsupportedError where no kernel of the implementation ran."""
        if not self._implementation.matches((kernel.name for kernel in kernels), self._device.kind):
            ran = kernels[0].name if kernels else "no kernel"
            raise UnsupportedError(f"{ran} ran instead: no kernel of it was seen in a profiled call")


@contextmanager
def open_bench(job: MixersJob, device: Device, session: Session) -> Iterator[MixersBench]:
    """A bench for a job. float32 products are computed as IEEE says."""
    with matmul_precision(job.subject.dtype):
        session.ready()
        limits = session.record.limits
        cache_bytes = limits.cache_bytes if limits else None
        yield MixersBench(
            job.subject,
            job.variant.variant,
            device,
            cache_bytes=cache_bytes,
            is_judged=job.is_judged,
            say=session.terminal.line,
        )


def is_training(point: MixersPoint) -> bool:
    """Whether the cell is of a model's training step."""
    return point.mode == TRAINING


def free_bytes(device: Device) -> int:
    """Free memory of the device now."""
    if device.kind == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    import torch

    return int(torch.cuda.mem_get_info(device.torch_name)[0])
