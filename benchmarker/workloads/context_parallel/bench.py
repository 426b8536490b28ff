"""The measuring of context parallel attention. This process is rank 0; it says what all ranks do.

The order for each cell: every rank makes its part of the inputs and runs a call; the result of all is put together and
checked; the repeats are timed; then the same work without exchange, one GPU's over as many positions, the link between
neighbours, and a profiled call on every rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarker.core.errors import DeviceError, UnsupportedError
from benchmarker.distributed.rank_processes import RankError
from benchmarker.distributed.ranks import Ranks, open_ranks
from benchmarker.distributed.torchrun import hosts
from benchmarker.measure.repeat import Measured
from benchmarker.workloads.attention.inputs import inputs_sha256
from benchmarker.workloads.attention.precision import matmul_precision
from benchmarker.workloads.attention.record import SeenKernel
from benchmarker.workloads.base import Nothing, Session
from benchmarker.workloads.context_parallel.check import refuse_missing_devices
from benchmarker.workloads.context_parallel.checking import refuse_wrong
from benchmarker.workloads.context_parallel.declared import cell_fields
from benchmarker.workloads.context_parallel.demand import demand_of
from benchmarker.workloads.context_parallel.record import (
    ContextParallelCell,
    ContextParallelChecked,
    ContextParallelFacts,
    RankTrace,
)
from benchmarker.workloads.context_parallel.spec import ContextParallelJob, ContextParallelPoint, shape_of
from benchmarker.workloads.context_parallel.timing import ContextParallelStep, slowest
from benchmarker.workloads.context_parallel.variants.base import RankPlace, devices_of
from benchmarker.workloads.context_parallel.variants.registry import not_there, splitting_of, wrong_shape

if TYPE_CHECKING:
    from benchmarker.hardware.device import Device
    from benchmarker.workloads.context_parallel.rank_work import RankWork

OTHERS = "benchmarker.workloads.context_parallel.rank_work:answer_rank_0"
REPEATS = 3
"""Of what is timed beside the repeats themselves; the median counts."""
LINK_BYTES = {"cpu": 2**24, "cuda": 2**28, "rocm": 2**28}
VARIABLES = re.compile(r"NCCL_\w+|TORCH_NCCL_\w+|GLOO_\w+")
PRIVATE = re.compile(r"(FILE|PATH|DIR|HOST|ADDR)")
"""Parts of names whose values say where something is."""


class ContextParallelBench(Nothing):
    """Measures one way to split."""

    def __init__(self, job: ContextParallelJob, device: Device, session: Session) -> None:
        self._job, self._device, self._session = job, device, session
        self._splitting = splitting_of(job.variant.variant)
        limits = session.record.limits
        self._cache_bytes = limits.cache_bytes if limits else None
        self._stack = ExitStack()
        self._ranks: Ranks | None = None
        self._own: RankWork | None = None
        """Rank 0's share. None where no ranks are up."""
        self._point: ContextParallelPoint | None = None
        self._names: tuple[str, ...] = ()
        self._places: tuple[str, ...] = ()
        self._count = 0

    def facts(self) -> Mapping[str, Any]:
        """How the ranks are joined."""
        on_cpu = self._device.kind == "cpu"
        count = max(1, len(self._names))
        return {
            "built": ContextParallelFacts(
                backend="gloo" if on_cpu else "nccl",
                collectives=None if on_cpu else _nccl_version(),
                devices=self._places or devices_of(self._device.torch_name, count),
                hosts=hosts(),
                device_names=self._names,
                peer_access=None if on_cpu or count < 2 else _peer_access(self._device.torch_name),
                variables=read_variables(os.environ),
            )
        }

    def cell(self, point: ContextParallelPoint) -> ContextParallelCell:
        """What is known of a cell before it is measured."""
        subject, where = self._job.subject, self._device.torch_name
        shape = shape_of(subject, point.seq_len, point.mode)
        return ContextParallelCell(
            status="ok",
            **cell_fields(self._job, point),
            demand=demand_of(shape, point.ranks, self._splitting),
            inputs_sha256=inputs_sha256(shape, where, seed=subject.seed),
        )

    def correct(self, point: ContextParallelPoint) -> Mapping[str, Any]:
        """Bring the ranks up, make the inputs, and check the result of all.

        Raises:
            UnsupportedError: The device or torch has nothing for it.
            WrongResultError: It computes something else than attention.
            RankError: A rank died, failed or hangs.
        """
        self._refuse(point)
        self._point = point
        prepared = self._call("prepare", seq_len=point.seq_len, mode=point.mode, cache_bytes=self._cache_bytes)
        self._names = tuple(answer["device"] for answer in prepared)
        self._places = tuple(answer["place"] for answer in prepared)
        checked = ContextParallelChecked.model_validate(self._call("correct")[0], strict=False)
        refuse_wrong(checked, self._job.subject.dtype)
        return {
            "checked": checked,
            "input_copies": prepared[0]["input_copies"],
            "sent_bytes": prepared[0]["sent_bytes"],
        }

    def step(self, point: ContextParallelPoint) -> ContextParallelStep:
        """What one repeat runs."""
        return ContextParallelStep(self._call, is_backward=point.mode == "forward_backward")

    def measured(
        self,
        cell: ContextParallelCell,
        step: ContextParallelStep,
        measured: Measured[Any],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """The work without exchange, one GPU's over as many positions, the link, and a profiled call."""
        fields: dict[str, Any] = {}
        if not self._splitting.is_alone:
            fields |= self._without_exchange(cell, step)
            single = [slowest(step.timed(cell.mode, "times_single")) for _ in range(REPEATS)]
            fields["single_s"] = median(single)
        if cell.gpus > 1:
            size = LINK_BYTES[self._device.kind]
            fields |= {"link_bytes": size, "link_bytes_per_s": size / max(self._call("link", message_bytes=size))}
        profiled = self._call("profile", work=cell.mode)
        traces = [answer["trace"] for answer in profiled if answer["trace"]]
        return {
            **fields,
            "kernels": tuple(SeenKernel(**kernel) for kernel in profiled[0]["kernels"]),
            "traces": tuple(RankTrace.model_validate(trace, strict=False) for trace in traces),
        }

    def _without_exchange(self, cell: ContextParallelCell, step: ContextParallelStep) -> dict[str, Any]:
        try:
            repeats = [step.timed(cell.mode, "times_alone") for _ in range(REPEATS)]
        except UnsupportedError as error:
            return {"no_alone": str(error)}
        by_rank = zip(*([answer["host_s"] for answer in answers] for answers in repeats), strict=True)
        return {"alone_s": tuple(median(times) for times in by_rank)}

    def _refuse(self, point: ContextParallelPoint) -> None:
        """Refuse what cannot run here.

        Raises:
            UnsupportedError: With why.
        """
        job = self._job
        problem = wrong_shape(job.variant.variant, job.variant.kernel, job.subject, point) or not_there(
            job.variant.variant, job.variant.kernel, self._device.kind, job.subject.dtype
        )
        if problem:
            raise UnsupportedError(problem)
        try:
            refuse_missing_devices(job, point.ranks)
        except DeviceError as error:
            raise UnsupportedError(str(error)) from error

    def _call(self, name: str, **arguments: Any) -> list[Any]:
        """All ranks' answers, of ranks that are there or are brought up for it.

        Raises:
            UnsupportedError: None of them can do this.
            RankError: A rank died, failed or hangs. All are ended.
        """
        point = self._point
        assert point is not None
        count = 1 if self._splitting.is_alone else point.ranks
        try:
            if self._own is None or self._count != count:
                self._open(count)
            own = self._own
            assert own is not None
            if self._ranks is None:
                return [getattr(own, name)(**arguments)]
            # Calls of one kind take equally long: longer ones are no hanging.
            kind = f"{name} {point} {arguments.get('work')} {arguments.get('calls')}"
            answer, answers = self._ranks.together(
                {"do": name, "with": arguments}, lambda: getattr(own, name)(**arguments), kind=kind
            )
        except UnsupportedError:
            raise
        except Exception:
            self.close()
            raise
        return [answer, *answers]

    def _open(self, count: int) -> None:
        """Bring up so many ranks."""
        from benchmarker.workloads.context_parallel.rank_work import RankWork

        self.close()
        options = {part: getattr(self._job, part).model_dump(mode="json") for part in ("subject", "variant")}
        devices = devices_of(self._device.torch_name, count)
        self._count = count
        self._stack.enter_context(_as_many_threads_afterwards())
        if count > 1:
            ranks = open_ranks(OTHERS, options, devices=devices, device=self._device, stuck=self._last_words)
            self._ranks = self._stack.enter_context(ranks)
        self._own = RankWork(RankPlace(0, count, devices[0]), **options)

    def _last_words(self, error: RankError) -> None:
        """Keep the cell that this process cannot come back from."""
        assert self._point is not None
        cell = self.cell(self._point).model_copy(
            update={"status": "timeout" if error.kind == "timeout" else "crash", "error_kind": error.kind}
        )
        record = self._session.record
        self._session.keep(cells=(*record.cells, cell.model_copy(update={"reason": str(error)})), **self.facts())

    def close(self) -> None:
        """End the ranks."""
        self._own = self._ranks = None
        self._stack.close()


@contextmanager
def open_bench(job: ContextParallelJob, device: Device, session: Session) -> Iterator[ContextParallelBench]:
    """A bench for a job."""
    with matmul_precision(job.subject.dtype):
        session.ready()
        bench = ContextParallelBench(job, device, session)
        with closing(bench):
            yield bench


@contextmanager
def _as_many_threads_afterwards() -> Iterator[None]:
    """Ranks that share a processor have fewer threads each."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def read_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that NCCL and gloo read, but for those that say where something is."""
    return {
        name: value[:200]
        for name, value in sorted(variables.items())
        if VARIABLES.fullmatch(name) and not PRIVATE.search(name)
    }


def _nccl_version() -> str:
    import torch

    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _peer_access(first: str) -> bool:
    import torch

    index = torch.device(first).index or 0
    return bool(torch.cuda.can_device_access_peer(index, index + 1))
