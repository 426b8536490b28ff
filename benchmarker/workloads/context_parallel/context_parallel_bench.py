"""Measurement of context parallel attention. This process is rank 0 and sends commands to the other ranks.

Order for each cell: every rank makes its shard of the inputs and runs a call; the gathered result is checked; the
repeats are timed. Three measurements follow: the same call without its exchange, attention of a single GPU over
seq_len / ranks positions, and the rate of the link between neighbours. At the end every rank profiles a call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarker.core.errors import DeviceError, UnsupportedError
from benchmarker.distributed.ranks import RankError, Ranks, hosts, open_ranks
from benchmarker.hardware.device import Device
from benchmarker.measure.repeat import calls_needed
from benchmarker.workloads.attention.attention_bench import inputs_sha256
from benchmarker.workloads.context_parallel import record as records
from benchmarker.workloads.context_parallel import spec
from benchmarker.workloads.context_parallel.rank_work import RankWork, TimedKind, refuse_wrong, serve_rank_0
from benchmarker.workloads.operation.operation_bench import split_passes
from benchmarker.workloads.operation.record import SeenKernel
from benchmarker.workloads.session import Bench, Session

REPEATS = 3  # Repeats of each measurement after the timed repeats; the median is recorded.
LINK_BYTES = {"cpu": 2**24, "cuda": 2**28, "rocm": 2**28}
VARIABLES = re.compile(r"(NCCL|TORCH_NCCL|GLOO)_(?!\w*(FILE|PATH|DIR|HOST|ADDR))\w+")
"""Recorded environment variables: those of NCCL and gloo, except paths and addresses."""


class RanksStep:
    """Callable that times one repeat of a cell on all ranks. The slowest rank's time is the latency."""

    def __init__(self, call: Callable[..., list[Any]], mode: str) -> None:
        self._call, self._mode = call, mode
        self._calls: dict[str, int] = {}

    def __call__(self) -> records.ContextParallelSample:
        answers = self.timed(self._mode)
        latency_s, is_backward = slowest_s(answers), self._mode == "forward_backward"
        events, peaks = ([answer[name] for answer in answers] for name in ("event_s", "peak_bytes"))
        return records.ContextParallelSample(
            latency_s=latency_s,
            calls=self._calls[self._mode],
            parts_s=split_passes(latency_s, slowest_s(self.timed("forward"))) if is_backward else {},
            event_s=None if None in events else max(events),
            ranks_s=tuple(answer["host_s"] for answer in answers),
            rank_peak_bytes=() if None in peaks else tuple(peaks),
        )

    def timed(self, work: str, kind: TimedKind = "together") -> list[dict[str, Any]]:
        times = partial(self._call, "times", work=work)
        if work not in self._calls:
            self._calls[work] = calls_needed(lambda calls: slowest_s(times(calls=calls, kind="together")) * calls)
        return times(calls=self._calls[work], kind=kind)


def slowest_s(answers: list[dict[str, Any]]) -> float:
    return max(float(answer["host_s"]) for answer in answers)


class ContextParallelBench(Bench):
    def __init__(self, job: spec.ContextParallelJob, device: Device, session: Session, cache_bytes: int | None) -> None:
        self._job, self._device, self._session, self._cache_bytes = job, device, session, cache_bytes
        self._splitting, self._stack = spec.splitting_of(job.variant.variant), ExitStack()
        self._ranks: Ranks | None = None
        self._own: RankWork | None = None
        """Work of rank 0. None while no ranks are running."""
        self._point: spec.ContextParallelPoint | None = None
        self._prepared: list[dict[str, Any]] = []
        """Each rank's answer to `RankWork.prepare`."""

    def facts(self) -> Mapping[str, Any]:
        devices = tuple(answer["device"] for answer in self._prepared)
        nccl: dict[str, Any] = {}
        if self._device.kind != "cpu":
            first = torch.device(self._device.torch_name).index or 0
            nccl["collectives"] = ".".join(map(str, torch.cuda.nccl.version()))
            nccl["peer_access"] = torch.cuda.can_device_access_peer(first, first + 1) if len(devices) > 1 else None
        built = records.ContextParallelFacts(
            backend="nccl" if nccl else "gloo",
            devices=devices or spec.devices_of(self._device.torch_name, 1),
            hosts=hosts(),
            device_names=tuple(answer["device_name"] for answer in self._prepared),
            variables=read_variables(os.environ),
            **nccl,
        )
        return {"built": built}

    def cell(self, point: spec.ContextParallelPoint) -> records.ContextParallelCell:
        subject = self._job.subject
        shape = spec.shape_of(subject, point.seq_len, point.mode)
        return records.ContextParallelCell(
            status="ok",
            **point._asdict(),
            gpus=self._splitting.gpus(point.ranks),
            demand=records.demand_of(shape, point.ranks, self._splitting),
            inputs_sha256=inputs_sha256(shape, self._device.torch_name, seed=subject.seed),
        )

    def correct(self, point: spec.ContextParallelPoint) -> Mapping[str, Any]:
        """Start the ranks, make the inputs, and check the gathered result. Raises UnsupportedError, WrongResultError,
        or RankError if a rank died, failed or hangs."""
        subject, variant = self._job.subject, self._job.variant
        if problem := spec.wrong_shape(variant, subject, point) or spec.unsupported(
            variant, self._device.kind, subject
        ):
            raise UnsupportedError(problem)
        try:
            spec.check_devices(self._job.device, self._splitting.gpus(point.ranks))
        except DeviceError as error:
            raise UnsupportedError(str(error)) from error
        self._point = point
        self._prepared = self._call("prepare", seq_len=point.seq_len, mode=point.mode, cache_bytes=self._cache_bytes)
        checked = self._call("correct")[0]
        refuse_wrong(checked, subject.dtype)
        return {"checked": checked, **{name: self._prepared[0][name] for name in ("input_copies", "sent_bytes")}}

    def step(self, point: spec.ContextParallelPoint) -> RanksStep:
        return RanksStep(self._call, point.mode)

    def measured(self, cell: records.ContextParallelCell, step: RanksStep) -> Mapping[str, Any]:
        """Measure a call without exchange, one GPU with seq_len / ranks positions, and the link; profile a call."""
        fields: dict[str, Any] = {}
        if self._splitting.exchange != "none":
            try:
                alone = [step.timed(cell.mode, "alone") for _ in range(REPEATS)]
                by_rank = zip(*([answer["host_s"] for answer in answers] for answers in alone), strict=True)
                fields["alone_s"] = tuple(median(times) for times in by_rank)
            except UnsupportedError as error:
                fields["no_alone"] = str(error)
            fields["single_s"] = median(slowest_s(step.timed(cell.mode, "single")) for _ in range(REPEATS))
        if cell.gpus > 1:
            size = LINK_BYTES[self._device.kind]
            fields |= {"link_bytes": size, "link_bytes_per_s": size / max(self._call("link", message_bytes=size))}
        profiled = self._call("profile", work=cell.mode)
        kernels = tuple(SeenKernel(**kernel) for kernel in profiled[0]["kernels"])
        traces = tuple(
            records.RankTrace.model_validate(each["trace"], strict=False) for each in profiled if each["trace"]
        )
        return {**fields, "kernels": kernels, "traces": traces}

    def _call(self, name: str, **arguments: Any) -> list[Any]:
        """Call a method of RankWork on all ranks, which are started if necessary; return their answers. Raises
        UnsupportedError if all ranks raised it with the same message, else RankError after all ranks were ended."""
        point = self._point
        assert point is not None
        count = self._splitting.gpus(point.ranks)
        try:
            if self._own is None or self._own.ranks != count:
                self._own = self._opened(count)
            work = partial(getattr(self._own, name), **arguments)
            if self._ranks is None:
                return [work()]
            # The time limit of a call follows from earlier calls of the same kind; a much longer call counts as hung.
            kind = f"{name} {point} {arguments.get('kind')} {arguments.get('work')} {arguments.get('calls')}"
            answer, answers = self._ranks.together({"do": name, "with": arguments}, work, kind=kind)
        except UnsupportedError:
            raise
        except Exception:
            self.close()
            raise
        return [answer, *answers]

    def _opened(self, count: int) -> RankWork:
        self.close()
        options = {part: getattr(self._job, part).model_dump(mode="json") for part in ("subject", "variant")}
        devices = spec.devices_of(self._device.torch_name, count)
        # Ranks on one CPU divide its threads; the old number is restored at the end.
        self._stack.callback(torch.set_num_threads, torch.get_num_threads())
        if count > 1:
            ranks = open_ranks(serve_rank_0, options, devices=devices, device=self._device, stuck=self._save_cell)
            self._ranks = self._stack.enter_context(ranks)
        return RankWork(0, count, devices[0], **options)

    def _save_cell(self, error: RankError) -> None:
        assert self._point is not None
        status = "timeout" if error.kind == "timeout" else "crash"
        cell = self.cell(self._point)
        cell = cell.model_copy(update={"status": status, "error_kind": error.kind, "reason": str(error)})
        self._session.keep(cells=(*self._session.record.cells, cell), **self.facts())

    def close(self) -> None:
        self._own = self._ranks = None
        self._stack.close()


def read_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:200] for name, value in sorted(variables.items()) if VARIABLES.fullmatch(name)}
