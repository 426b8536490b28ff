"""The measuring of attention: an implementation made ready for a shape, proven, checked, then timed.

The order for each cell: one call, whose kernels a short profile names; its output and gradients against float64; two
tests for a kept output; the memory of both passes; then the clock.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import UnsupportedError, WrongResultError
from benchmarker.workloads.attention.check import source_sha256
from benchmarker.workloads.attention.demand import demand_of
from benchmarker.workloads.attention.inputs import Inputs, copies_needed, inputs_sha256, make_inputs, shifted
from benchmarker.workloads.attention.precision import MatmulPrecision, matmul_precision
from benchmarker.workloads.attention.proof import KEPT, kernels_of, not_its_own
from benchmarker.workloads.attention.record import AttentionCell, AttentionChecked, AttentionFacts
from benchmarker.workloads.attention.reference import check, wrong
from benchmarker.workloads.attention.spec import (
    AttentionJob,
    AttentionPoint,
    AttentionSubject,
    AttentionVariant,
    Shape,
    shape_of,
)
from benchmarker.workloads.attention.timing import AttentionStep, OneCall, memory_of_passes, results_of
from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.attention.variants.registry import implementation_of, missing_module
from benchmarker.workloads.session import Nothing, Session

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.hardware.device import Device

NO_BACKEND = (
    "no available kernel",
    "no viable backend",
    "no valid engine configs",
    "no valid execution plans",
    "no valid triton configs",
    "not implemented for",
    "does not support",
    "does not require grad",
    "forward unsupported",
    "backward unsupported",
)
"""What torch says, in lower case, where an operator has nothing for a shape, a type, a device or the backward pass."""
NOT_A_REASON = ("not used because", "runtime disabled")


@dataclass(frozen=True)
class Ready:
    """One cell before its clock starts."""

    shape: Shape
    attention: Attention
    copies: list[Inputs]


class AttentionBench(Nothing):
    """Measures one implementation."""

    def __init__(
        self,
        subject: AttentionSubject,
        variant: AttentionVariant,
        device: Device,
        *,
        precision: MatmulPrecision | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._subject = subject
        self._variant = variant
        self._device = device
        self._precision = precision
        self._cache_bytes = cache_bytes
        self._implementation = implementation_of(variant.variant)
        # The cell that is measured now: its inputs may fill the device.
        self._ready: Ready | None = None

    def facts(self) -> Mapping[str, Any]:
        """What is measured."""
        precision = None if self._device.kind == "cpu" else self._precision
        source = source_sha256(self._variant.variant)
        return {"built": AttentionFacts(matmul_precision=precision, source_sha256=source)}

    def cell(self, point: AttentionPoint) -> AttentionCell:
        """What is known of a cell before it is measured."""
        self._ready = None
        shape = shape_of(self._subject, self._variant, point)
        return AttentionCell(
            status="ok",
            seq_len=point.seq_len,
            batch_size=point.batch_size,
            mode=point.mode,
            demand=demand_of(shape),
            inputs_sha256=inputs_sha256(shape, self._device.torch_name, seed=self._subject.seed),
        )

    def ready(self, point: AttentionPoint) -> Ready:
        """Make inputs and implementation.

        Raises:
            UnsupportedError: It cannot run here.
        """
        shape = shape_of(self._subject, self._variant, point)
        reason = self._implementation.unsupported(shape, self._device.kind)
        if reason:
            raise UnsupportedError(reason)
        missing = missing_module(self._implementation)
        if missing:
            raise UnsupportedError(f"needs {missing}, which is not installed: {self._implementation.remedy}")
        where, seed = self._device.torch_name, self._subject.seed
        count = copies_needed(shape, self._cache_bytes, kind=self._device.kind)
        first = make_inputs(shape, where, seed=seed)
        copies = [first, *(shifted(first, places) for places in range(1, count))]
        return Ready(shape, self._implementation.open(shape, where), copies)

    def correct(self, point: AttentionPoint) -> Mapping[str, Any]:
        """The kernels of one call, its error, and its memory.

        Raises:
            UnsupportedError: torch has no kernel for it, or another implementation's kernel ran.
            WrongResultError: It computes something else than attention.
        """
        ready = self._ready = self.ready(point)
        step, first = AttentionStep(ready.attention, ready.copies, self._device), ready.copies[0]
        with no_kernel_is_unsupported():
            results_of(ready.attention, first)  # compiles, and loads what is loaded once
        with ready.attention.around():
            kernels = kernels_of(lambda: step.work()(first), self._device)
        instead = not_its_own(self._implementation, kernels, self._device.kind)
        if instead:
            raise UnsupportedError(instead)
        checked = self._checked(ready)
        self._device.release()
        return {
            "kernels": kernels[:KEPT],
            "checked": checked,
            "passes": memory_of_passes(ready.attention, first, self._device),
            "input_copies": len(ready.copies),
        }

    def step(self, point: AttentionPoint) -> AttentionStep:
        """What one repeat runs."""
        ready = self._ready or self.ready(point)
        return AttentionStep(ready.attention, ready.copies, self._device)

    def _checked(self, ready: Ready) -> AttentionChecked:
        """Errors of a call whose inputs were changed in place after an earlier call on the same memory."""
        first, results = ready.copies[0], results_of(ready.attention, ready.copies[0])
        refuse_kept_output(results, results_of(ready.attention, first))
        del results
        fresh = make_inputs(ready.shape, self._device.torch_name, seed=self._subject.seed + 1)
        exchange(first, fresh)
        checked = check(results_of(ready.attention, first), first, ready.shape)
        problem = wrong(checked)
        if problem:
            raise WrongResultError(problem)
        return checked


@contextmanager
def open_bench(job: AttentionJob, device: Device, session: Session) -> Iterator[AttentionBench]:
    """A bench for a job. The device's limits are measured with float32 products computed as the job says."""
    with matmul_precision(job.dtype) as precision:
        session.ready()
        limits = session.record.limits
        cache_bytes = limits.cache_bytes if limits else None
        yield AttentionBench(job.subject, job.variant, device, precision=precision, cache_bytes=cache_bytes)


@contextmanager
def open_attention(
    subject: AttentionSubject, variant: AttentionVariant, device: Device, *, cache_bytes: int | None = None
) -> Iterator[AttentionBench]:
    """A bench, with float32 products computed as the type says for as long as it is open."""
    with matmul_precision(variant.dtype or subject.dtype) as precision:
        yield AttentionBench(subject, variant, device, precision=precision, cache_bytes=cache_bytes)


def refuse_kept_output(results: Mapping[Any, Tensor], again: Mapping[Any, Tensor]) -> None:
    """Two calls whose results are all alive have them in different memory, or one is the other's.

    Raises:
        WrongResultError: They share it.
    """
    for name, result in results.items():
        if result.data_ptr() == again[name].data_ptr():
            raise WrongResultError(
                f"wrong result: two calls return {name} in the same memory, so that one is kept from the other; "
                "return a new tensor from each call"
            )


def exchange(first: OneCall, source: OneCall) -> None:
    """Put the numbers of one copy into the memory of another."""
    import torch

    with torch.no_grad():
        for target, values in zip(first.tensors, source.tensors, strict=True):
            target.copy_(values)
        if first.gradient is not None and source.gradient is not None:
            first.gradient.copy_(source.gradient)


@contextmanager
def no_kernel_is_unsupported() -> Iterator[None]:
    """Turn torch's refusal into one line, with the reason that it only warns of.

    Raises:
        UnsupportedError: torch has no kernel.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            text = str(error)
            if not any(phrase in text.lower() for phrase in NO_BACKEND):
                raise
            reasons = [str(warning.message).split(" (Triggered")[0] for warning in caught]
            reason = next((line for line in reasons if not any(part in line for part in NOT_A_REASON)), None)
            raise UnsupportedError(f"torch: {(reason or text).strip().splitlines()[0][:300]}") from error
