"""The measuring of token mixers: an implementation made ready for a shape, proven, checked, then timed.

The order for each cell: one call, whose kernels a short profile names; output and gradients against float64; what lies
behind a position must not change what is before it; once in each process the lengths around a chunk's end; the memory
of both passes; then the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.attention.bench import exchange, no_kernel_is_unsupported, refuse_kept_output
from benchmarker.workloads.attention.precision import matmul_precision
from benchmarker.workloads.attention.proof import KEPT, kernels_of
from benchmarker.workloads.attention.record import SeenKernel
from benchmarker.workloads.attention.reference import relative_error, rows_of
from benchmarker.workloads.attention.timing import AttentionStep, memory_of_passes
from benchmarker.workloads.base import Nothing, Session
from benchmarker.workloads.mixers.demand import demand_of, least_bytes
from benchmarker.workloads.mixers.inputs import Inputs, copies_needed, inputs_sha256, make_inputs
from benchmarker.workloads.mixers.record import MixersCell, MixersChecked, MixersFacts, TensorError
from benchmarker.workloads.mixers.reference import (
    HEADS,
    NAMES,
    TOLERANCES,
    Results,
    errors_of,
    wrong,
)
from benchmarker.workloads.mixers.spec import MixersJob, MixersPoint, MixersSubject, Shape, shape_of
from benchmarker.workloads.mixers.variants.base import Operation
from benchmarker.workloads.mixers.variants.registry import implementation_of, missing_module

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

CHUNK_ENDS = (63, 64, 65, 127)
"""Lengths on either side of the end of a chunk of 64, which most kernels have."""


@dataclass(frozen=True)
class Ready:
    """One cell before its clock starts."""

    shape: Shape
    operation: Operation
    copies: list[Inputs]


class MixersBench(Nothing):
    """Measures one implementation."""

    def __init__(self, subject: MixersSubject, variant: str, device: Device, *, cache_bytes: int | None = None) -> None:
        self._subject = subject
        self._implementation = implementation_of(variant)
        self._mixer = self._implementation.mixer
        self._device = device
        self._cache_bytes = cache_bytes
        # The cell that is measured now: its inputs may fill the device.
        self._ready: Ready | None = None
        self._ends: dict[bool, float] = {}

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
            demand=demand_of(self._mixer, shape),
            least_bytes=least_bytes(self._mixer, shape, writes_scores=self._implementation.writes_scores),
            free_bytes=free_bytes(self._device),
            inputs_sha256=inputs_sha256(shape, self._device.torch_name, seed=self._subject.seed),
        )

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
        copies = [self._inputs(shape, self._subject.seed + number) for number in range(count)]
        return Ready(shape, self._implementation.open(shape, self._device.torch_name), copies)

    def correct(self, point: MixersPoint) -> Mapping[str, Any]:
        """The kernels of one call, its errors, and its memory.

        Raises:
            UnsupportedError: There is no kernel for it, or another implementation's kernel ran.
            WrongResultError: It computes something else than the mixer.
        """
        ready = self._ready = self.ready(point)
        step, first = AttentionStep(ready.operation, ready.copies, self._device), ready.copies[0]
        with no_kernel_is_unsupported():
            results_of(ready.operation, first)  # compiles, tunes, and loads what is loaded once
        with ready.operation.around():
            kernels = kernels_of(lambda: step.work()(first), self._device)
        self._refuse_others(kernels)
        checked = self._checked(ready)
        self._device.release()
        return {
            "kernels": kernels[:KEPT],
            "checked": checked,
            "passes": memory_of_passes(ready.operation, first, self._device),
            "input_copies": len(ready.copies),
        }

    def step(self, point: MixersPoint) -> AttentionStep:
        """What one repeat runs."""
        ready = self._ready or self.ready(point)
        return AttentionStep(ready.operation, ready.copies, self._device)

    def _inputs(self, shape: Shape, seed: int) -> Inputs:
        layout = self._implementation.layout
        return make_inputs(self._mixer, shape, self._device.torch_name, seed=seed, layout=layout)

    def _refuse_others(self, kernels: tuple[SeenKernel, ...]) -> None:
        """Raises UnsupportedError where no kernel of the implementation ran."""
        if not self._implementation.matches((kernel.name for kernel in kernels), self._device.kind):
            ran = kernels[0].name if kernels else "no kernel"
            raise UnsupportedError(f"{ran} ran instead: no kernel of it was seen in a profiled call")

    def _checked(self, ready: Ready) -> MixersChecked:
        """Errors of a call whose inputs were changed in place after an earlier call on the same memory."""
        first, shape = ready.copies[0], ready.shape
        before = results_of(ready.operation, first)
        refuse_kept_output(before, results_of(ready.operation, first))
        del before
        exchange(first, self._inputs(shape, self._subject.seed + len(ready.copies)))
        results = results_of(ready.operation, first)
        errors = self._refuse_wrong(results, first, shape)
        output = results["o"]
        del results
        causal_error = self._causal_error(ready, output)
        is_softmax = self._mixer.state_products is None
        return MixersChecked(
            against="float64",
            error=max(tensor.error for tensor in errors),
            tolerance=TOLERANCES[shape.dtype],
            tensors=errors,
            rows=len(rows_of(shape.seq_len)) if is_softmax else shape.seq_len,
            heads=shape.heads if is_softmax else min(HEADS, shape.heads),
            causal_error=causal_error,
            lengths=() if is_softmax else CHUNK_ENDS,
            lengths_error=None if is_softmax else self._ends_error(shape),
        )

    def _refuse_wrong(self, results: Results, inputs: Inputs, shape: Shape, where: str = "") -> tuple[TensorError, ...]:
        errors = errors_of(results, self._mixer, inputs, shape, self._implementation.layout)
        problem = wrong(errors, where)
        if problem:
            raise WrongResultError(problem)
        return errors

    def _causal_error(self, ready: Ready, output: Any) -> float:
        """How much the outputs before the middle change with everything behind it.

        Raises:
            WrongResultError: More than rounding.
        """
        import torch

        shape, first = ready.shape, ready.copies[0]
        other = self._inputs(shape, self._subject.seed + len(ready.copies) + 1)
        middle, axis = shape.seq_len // 2, 2 if self._implementation.layout == "heads first" else 1
        if not middle:
            return 0.0
        with torch.no_grad():
            for target, source in zip(first.tensors, other.tensors, strict=True):
                size = shape.seq_len - middle
                target.narrow(axis, middle, size).copy_(source.narrow(axis, middle, size))
            with ready.operation.around():
                changed = ready.operation.call(*first.tensors)
        error = relative_error(changed.narrow(axis, 0, middle), output.narrow(axis, 0, middle))
        if error > TOLERANCES[shape.dtype]:
            raise WrongResultError(f"wrong result: what is behind a position changes what is before it, by {error:.2g}")
        return error

    def _ends_error(self, shape: Shape) -> float:
        """The largest error of an output at the lengths around a chunk's end.

        Raises:
            WrongResultError: One of them is wrong.
        """
        if shape.is_backward not in self._ends:
            worst = 0.0
            for length in CHUNK_ENDS:
                short = shape._replace(seq_len=length, batch_size=1)
                inputs = self._inputs(short, self._subject.seed)
                results = results_of(self._implementation.open(short, self._device.torch_name), inputs)
                errors = self._refuse_wrong(results, inputs, short, f" at {length} positions")
                worst = max(worst, errors[0].error)
            self._ends[shape.is_backward] = worst
        return self._ends[shape.is_backward]


@contextmanager
def open_bench(job: MixersJob, device: Device, session: Session) -> Iterator[MixersBench]:
    """A bench for a job. float32 products are computed as IEEE says."""
    with matmul_precision(job.subject.dtype):
        session.ready()
        limits = session.record.limits
        cache_bytes = limits.cache_bytes if limits else None
        yield MixersBench(job.subject, job.variant.variant, device, cache_bytes=cache_bytes)


def results_of(operation: Operation, inputs: Inputs) -> Results:
    """One call's output, and the gradients of all inputs where they ask for them.

    Raises:
        WrongResultError: The output has another shape.
    """
    import torch

    with operation.around():
        output = operation.call(*inputs.tensors)
        expected = inputs.named["v"].shape
        if output.shape != expected:
            raise WrongResultError(f"wrong result: o has the shape {list(output.shape)}, not {list(expected)}")
        if inputs.gradient is None:
            return {"o": output}
        gradients = torch.autograd.grad(output, inputs.tensors, inputs.gradient)
    named = {NAMES[name]: part for name, part in zip(inputs.named, gradients, strict=True)}
    return {"o": output.detach(), **named}


def free_bytes(device: Device) -> int:
    """Free memory of the device now."""
    if device.kind == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    import torch

    return int(torch.cuda.mem_get_info(device.torch_name)[0])
