"""Measurement of one implementation of an operation.

Order for each cell: one call, whose kernels a short profile names; output and gradients against float64; memory of
both passes; then the clock.

cuBLAS and inductor both read `torch.set_float32_matmul_precision` in torch 2.8 to 2.13. Setting only the newer
`torch.backends.cuda.matmul.fp32_precision` makes older readers inside torch fail, so it serves only as the proof.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from benchmarker.core.errors import UnsupportedError
from benchmarker.measure.repeat import Step
from benchmarker.workloads.operation.call_inputs import CallInputs, results_of
from benchmarker.workloads.operation.call_timing import CallStep, memory_of_passes
from benchmarker.workloads.operation.implementation import Implementation, Operation
from benchmarker.workloads.operation.kernel_proof import (
    RECORDED_KERNELS,
    kernels_of,
    missing_kernel_is_unsupported,
)
from benchmarker.workloads.operation.record import OperationChecked, OperationSample, SeenKernel
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.session import Nothing, Session

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device

MatmulPrecision = Literal["ieee", "tf32"]


@contextmanager
def matmul_precision(dtype: str) -> Iterator[MatmulPrecision | None]:
    """Set the precision of a type while the context is open, and yield the precision that torch reports.

    Yields None for 16-bit types, which the setting does not concern.
    """
    import torch

    if dtype not in ("float32", "tf32"):
        yield None
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        matmul = torch.backends.cuda.matmul
        is_tf32 = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
        yield "tf32" if is_tf32 else "ieee"
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class ReadyCall:
    """Operation and inputs of one cell."""

    shape: Any
    operation: Operation
    copies: list[CallInputs]


class OperationBench(Nothing, ABC):
    """Measures one implementation over a grid of lengths."""

    def __init__(self, implementation: Implementation, device: Device, *, cache_bytes: int | None = None) -> None:
        self.implementation = implementation
        self.device = device
        self.cache_bytes = cache_bytes
        # Holds the current cell alone, whose inputs may fill the device.
        self._ready: ReadyCall | None = None

    @abstractmethod
    def shape(self, point: LengthPoint) -> Any:
        """Return the shape of a cell's call."""

    @abstractmethod
    def copies(self, point: LengthPoint) -> list[CallInputs]:
        """Make the copies of a cell's inputs."""

    @abstractmethod
    def checked(self, ready: ReadyCall) -> OperationChecked:
        """Compare a call with float64, after its inputs were overwritten in place. Raises WrongResultError."""

    def prepare(self, point: LengthPoint) -> ReadyCall:
        shape = self.shape(point)
        self.implementation.check_available(shape, self.device.kind)
        copies = self.copies(point)
        return ReadyCall(shape, self.implementation.open(shape, self.device.torch_name), copies)

    def correct(self, point: LengthPoint) -> Mapping[str, Any]:
        """Return the kernels of one call, its errors and its memory. Raises UnsupportedError if there is no kernel or
        another implementation's kernel ran, and WrongResultError."""
        ready, fields = self.prove(point)
        passes = memory_of_passes(ready.operation, ready.copies[0], self.device)
        return {**fields, "passes": passes, "input_copies": len(ready.copies)}

    def prove(self, point: LengthPoint) -> tuple[ReadyCall, dict[str, Any]]:
        """Return the prepared call with its kernels and errors, which are fields of the cell."""
        ready = self._ready = self.prepare(point)
        step, first = CallStep(ready.operation, ready.copies, self.device), ready.copies[0]
        with missing_kernel_is_unsupported(), self.library_refusals():
            results_of(ready.operation, first)  # compiles, tunes, and loads libraries
        with ready.operation.around():
            kernels = kernels_of(lambda: step.work()(first), self.device)
        if not self.implementation.matches((kernel.name for kernel in kernels), self.device.kind):
            raise UnsupportedError(f"{self.name_kernels(kernels)} ran instead: a profiled call ran none of its kernels")
        checked = self.checked(ready)
        self.device.release()
        return ready, {"kernels": kernels[:RECORDED_KERNELS], "checked": checked}

    def step(self, point: LengthPoint) -> Step[OperationSample]:
        ready = self._ready or self.prepare(point)
        return CallStep(ready.operation, ready.copies, self.device)

    def library_refusals(self) -> AbstractContextManager[None]:
        """Return a context that turns a library's own refusals into UnsupportedError."""
        return nullcontext()

    def name_kernels(self, kernels: tuple[SeenKernel, ...]) -> str:
        """Name the implementation that the kernels belong to, or the longest kernel."""
        return kernels[0].name if kernels else "no kernel"


@contextmanager
def measured_limits(session: Session, dtype: str) -> Iterator[tuple[int | None, MatmulPrecision | None]]:
    """Have the device's limits measured with the products' precision of a type, which stays set in the context.

    Yields:
        Bytes of the device's cache, None if unmeasured, and the precision that torch reports.
    """
    with matmul_precision(dtype) as precision:
        session.ready()
        limits = session.record.limits
        yield (limits.cache_bytes if limits else None), precision
