"""Measurement of one implementation of a mixer.

Beyond the checks of every operation, later inputs must not change earlier outputs, and once per process and mode the
lengths around the end of a chunk are compared with float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import WrongResultError
from benchmarker.measure.repeat import Step
from benchmarker.schema.record import RunRecord
from benchmarker.workloads.attention.attention_bench import rows_of
from benchmarker.workloads.mixers.mixer import MixerImplementation, demand_of, least_bytes
from benchmarker.workloads.mixers.mixer_reference import (
    COMPARED_HEADS,
    TOLERANCES,
    checked_errors,
    input_bytes,
    inputs_sha256,
    make_inputs,
)
from benchmarker.workloads.mixers.mixer_variants import implementation_of, refused_compiler_is_unsupported
from benchmarker.workloads.mixers.record import (
    MixersCell,
    MixersChecked,
    MixersFacts,
)
from benchmarker.workloads.mixers.small_model import ModelStep, block_facts, training_demand
from benchmarker.workloads.mixers.spec import MixerShape, MixersJob, MixersSubject, shape_of
from benchmarker.workloads.operation.operation_bench import OperationBench, ReadyCall, measured_limits
from benchmarker.workloads.operation.operation_call import (
    CallInputs,
    copies_needed,
    fresh_results,
    relative_error,
    results_of,
)
from benchmarker.workloads.operation.record import OperationSample
from benchmarker.workloads.operation.spec import LengthPoint
from benchmarker.workloads.session import Session

if TYPE_CHECKING:
    from torch import Tensor

    from benchmarker.hardware.device import Device

TRAINING = "training_step"
MAX_COPIES = 64
"""Maximum number of input copies. Inputs that still fit in the cache with this many copies would be cached in a real
model as well."""
CHUNK_ENDS = (63, 64, 65, 127)
"""Lengths around the end of a chunk of 64 positions, the size of most kernels' chunks."""


class MixersBench(OperationBench[MixerImplementation]):
    def __init__(
        self,
        subject: MixersSubject,
        variant: str,
        device: Device,
        *,
        cache_bytes: int | None = None,
        report: Callable[[str], object] | None = None,
    ) -> None:
        """Open a variant. With `report`, models are trained on the subject's tasks after timing, each with a line of
        progress."""
        super().__init__(implementation_of(variant), device, cache_bytes=cache_bytes)
        self._mixer = self.implementation.mixer
        self._subject = subject
        self._report = report
        self._chunk_end_errors: dict[bool, float] = {}

    def facts(self) -> Mapping[str, Any]:
        packages = ("torch",) if self.implementation.missing_module() else self.implementation.packages
        return {"built": MixersFacts(versions={name: version(name) for name in packages})}

    def shape(self, point: LengthPoint) -> MixerShape:
        return shape_of(self._subject, point)

    def cell(self, point: LengthPoint) -> MixersCell:
        self._ready = None
        mixer, subject, shape, is_training = self._mixer, self._subject, self.shape(point), point.mode == TRAINING
        return MixersCell(
            status="ok",
            **point._asdict(),
            demand=training_demand(mixer, subject, point) if is_training else demand_of(mixer, shape),
            block=block_facts(mixer, subject, point.seq_len) if is_training else None,
            least_bytes=least_bytes(mixer, shape, writes_scores=self.implementation.writes_scores),
            free_bytes=_free_bytes(self.device),
            inputs_sha256=inputs_sha256(shape, self.device.torch_name, seed=subject.seed),
        )

    def _inputs(self, shape: MixerShape, seed: int) -> CallInputs:
        device, layout = self.device.torch_name, self.implementation.layout
        return make_inputs(self._mixer, shape, device, seed=seed, layout=layout)

    def copies(self, point: LengthPoint) -> list[CallInputs]:
        shape = self.shape(point)
        # A model's own tensors fill the cache: its mixer is checked on one copy and not timed by itself.
        most = 1 if point.mode == TRAINING else MAX_COPIES
        count = min(most, copies_needed(input_bytes(self._mixer, shape), self.cache_bytes, kind=self.device.kind))
        return [self._inputs(shape, self._subject.seed + number) for number in range(count)]

    def library_refusals(self) -> AbstractContextManager[None]:
        return refused_compiler_is_unsupported()

    def correct(self, point: LengthPoint) -> Mapping[str, Any]:
        return self.prove(point)[1] if point.mode == TRAINING else super().correct(point)

    def step(self, point: LengthPoint) -> Step[OperationSample]:
        if point.mode != TRAINING:
            return super().step(point)
        self._ready = None
        return ModelStep(self.implementation, self._subject, point, self.device)

    def measured(self, cell: MixersCell, step: Any) -> Mapping[str, Any]:
        return {"passes": step.passes()} if cell.mode == TRAINING else {}

    def afterwards(self, record: RunRecord, path: Path) -> Mapping[str, Any]:  # noqa: ARG002
        if self._report is None:
            return {}
        from benchmarker.workloads.mixers.mixer_tasks import scores

        self._ready = None
        return scores(self.implementation, self._subject, self.device, self._report)

    def checked(self, ready: ReadyCall) -> MixersChecked:
        first, shape, seed = ready.copies[0], ready.shape, self._subject.seed + len(ready.copies)
        results = fresh_results(ready.operation, first, lambda: self._inputs(shape, seed))
        errors = checked_errors(results, self.implementation, first, shape)
        output = results["o"]
        del results
        causal_error = self._causal_error(ready, output, self._inputs(shape, seed + 1))
        is_softmax = self.implementation.is_softmax
        return MixersChecked(
            against="float64",
            error=max(tensor.error for tensor in errors),
            tolerance=TOLERANCES[shape.dtype],
            tensors=errors,
            rows=len(rows_of(shape.seq_len)) if is_softmax else shape.seq_len,
            heads=shape.heads if is_softmax else min(COMPARED_HEADS, shape.heads),
            causal_error=causal_error,
            lengths=() if is_softmax else CHUNK_ENDS,
            lengths_error=None if is_softmax else self._chunk_end_error(shape),
        )

    def _causal_error(self, ready: ReadyCall, output: Tensor, fresh: CallInputs) -> float:
        """Return the relative change of the outputs before the middle when all later inputs change. Raises
        WrongResultError if it is larger than rounding."""
        import torch

        shape, first = ready.shape, ready.copies[0]
        middle, axis = shape.seq_len // 2, 2 if self.implementation.layout == "heads first" else 1
        if not middle:
            return 0.0
        with torch.no_grad():
            for target, source in zip(first.tensors, fresh.tensors, strict=True):
                size = shape.seq_len - middle
                target.narrow(axis, middle, size).copy_(source.narrow(axis, middle, size))
            with ready.operation.around():
                changed = ready.operation.call(*first.tensors)
        error = relative_error(changed.narrow(axis, 0, middle), output.narrow(axis, 0, middle))
        if error > TOLERANCES[shape.dtype]:
            raise WrongResultError(f"wrong result: later inputs change earlier outputs, by {error:.2g}")
        return error

    def _chunk_end_error(self, shape: MixerShape) -> float:
        """Return the largest error of an output around the end of a chunk, computed once per mode."""
        if shape.is_backward not in self._chunk_end_errors:
            errors = []
            for length in CHUNK_ENDS:
                short = shape._replace(seq_len=length, batch_size=1)
                inputs = self._inputs(short, self._subject.seed)
                results = results_of(self.implementation.open(short, self.device.torch_name), inputs)
                suffix = f" at {length} positions"
                errors.append(checked_errors(results, self.implementation, inputs, short, suffix)[0].error)
            self._chunk_end_errors[shape.is_backward] = max(errors)
        return self._chunk_end_errors[shape.is_backward]


@contextmanager
def open_bench(job: MixersJob, device: Device, session: Session) -> Iterator[MixersBench]:
    report = session.terminal.line if job.is_judged else None
    with measured_limits(session, job.subject.dtype) as (cache_bytes, _):
        yield MixersBench(job.subject, job.variant.variant, device, cache_bytes=cache_bytes, report=report)


def _free_bytes(device: Device) -> int:
    if device.kind == "cpu":
        import psutil

        return int(psutil.virtual_memory().available)
    import torch

    return int(torch.cuda.mem_get_info(device.torch_name)[0])
