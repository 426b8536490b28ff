"""What every rank does, rank 0 among them: make its part of the inputs, compute, exchange, and read its own clock.

Rank 0 says which method (see `distributed.ranks`); all ranks run it at the same time. Answers are JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarker.core.named_import import imported
from benchmarker.distributed.rank import Rank, barrier
from benchmarker.hardware.device import find_device
from benchmarker.measure.profile import start_profiler_once, trace_of
from benchmarker.profiling.categories import Category
from benchmarker.profiling.overlap import KindTime, Overlap, overlap_of
from benchmarker.workloads.attention.bench import exchange, no_kernel_is_unsupported, refuse_kept_output
from benchmarker.workloads.attention.inputs import Inputs, copies_needed, make_inputs, shifted
from benchmarker.workloads.attention.proof import KEPT, kernels_of
from benchmarker.workloads.attention.spec import Mode, Shape
from benchmarker.workloads.attention.timing import AttentionStep, results_of
from benchmarker.workloads.attention.variants.base import Attention
from benchmarker.workloads.context_parallel.checking import against_whole
from benchmarker.workloads.context_parallel.exchange import EXCHANGED, ToNext
from benchmarker.workloads.context_parallel.shards import gathered, order_error, position_coded, put_together, shard
from benchmarker.workloads.context_parallel.spec import ContextParallelSubject, ContextParallelVariant, shape_of
from benchmarker.workloads.context_parallel.variants.base import Plan, RankPlace
from benchmarker.workloads.context_parallel.variants.registry import splitting_of
from benchmarker.workloads.context_parallel.variants.single import open_single

LINK_REPEATS = 5
TimedKind = Literal["together", "alone", "single"]
"""`alone` is the same work without exchange; `single` is one GPU's over a rank's positions."""


def answer_rank_0(rank: Rank, options: dict[str, Any]) -> None:
    """Be one of the ranks from 1 on.

    Args:
        options: Of `RankWork`.
    """
    work = RankWork(RankPlace(rank.number, rank.count, rank.device.torch_name), **options)
    rank.serve(lambda message: getattr(work, message["do"])(**message["with"]))


@dataclass(frozen=True)
class Ready:
    """One cell on one rank."""

    plan: Plan
    attention: Attention
    copies: list[Inputs]


class RankWork:
    """One rank's share of the measurement of one variant."""

    def __init__(self, place: RankPlace, *, subject: dict[str, Any], variant: dict[str, Any]) -> None:
        self._place = place
        self._subject = ContextParallelSubject(**subject)
        self._variant = ContextParallelVariant(**variant)
        self._splitting = splitting_of(self._variant.variant)
        self._device = find_device(place.device)
        self._ready: Ready | None = None
        self._steps: dict[TimedKind, AttentionStep] = {}
        self._is_profiler_warm = False
        if self._device.kind == "cpu":
            # The ranks share the cores of this host.
            torch.set_num_threads(max(1, torch.get_num_threads() // place.ranks))

    def prepare(self, *, seq_len: int, mode: Mode, cache_bytes: int | None) -> dict[str, Any]:
        """Make this rank's inputs, in copies that together exceed the cache, and run one call.

        Raises:
            UnsupportedError: torch has no kernel for it.
        """
        self._ready = None
        self._steps.clear()
        self._device.release()
        shape = shape_of(self._subject, seq_len, mode)
        plan = self._plan(shape)
        first = shard(make_inputs(shape, self._place.device, seed=self._subject.seed), plan)
        count = copies_needed(self._local(shape), cache_bytes, kind=self._device.kind)
        copies = [first, *(shifted(first, places) for places in range(1, count))]
        self._ready = Ready(plan, self._open(plan), copies)
        self._device.release()
        before = EXCHANGED.sent_bytes
        with no_kernel_is_unsupported():
            results_of(self._ready.attention, first)
        sent_bytes = EXCHANGED.sent_bytes - before if self._splitting.is_counted else None
        return {"input_copies": count, "device": self._name(), "place": self._place.device, "sent_bytes": sent_bytes}

    def correct(self) -> dict[str, Any]:
        """Put the result of all ranks together, and compare it on rank 0.

        Returns:
            On rank 0 the fields of `ContextParallelChecked`; nothing on the others.

        Raises:
            WrongResultError: Two calls return the same memory, or a number is not finite.
        """
        ready = self._the_ready
        first = ready.copies[0]
        results = results_of(ready.attention, first)
        refuse_kept_output(results, results_of(ready.attention, first))
        del results
        # Another seed, in the memory of the first: a result that was kept from before would be found out.
        whole = make_inputs(ready.plan.shape, self._place.device, seed=self._subject.seed + 1)
        exchange(first, shard(whole, ready.plan))
        result = put_together(results_of(ready.attention, first), ready.plan)
        coded = gathered(self._coded(ready), ready.plan)
        fields: dict[str, Any] = {}
        if result is not None and coded is not None:
            single = None if self._splitting.is_alone else open_single(self._plan(ready.plan.shape))
            fields = against_whole(result, whole, ready.plan.shape, single)
            fields["order_error"] = order_error(coded)
        del whole, result
        self._device.release()
        return fields

    def times(self, *, work: str, calls: int) -> dict[str, Any]:
        """So many calls in a row after a barrier.

        Args:
            work: `forward` or `forward_backward`.
        """
        return self._timed("together", work, calls)

    def times_alone(self, *, work: str, calls: int) -> dict[str, Any]:
        """The same work without exchange.

        Raises:
            UnsupportedError: It cannot be left out.
        """
        return self._timed("alone", work, calls)

    def times_single(self, *, work: str, calls: int) -> dict[str, Any]:
        """One GPU's call over as many positions as a rank has, on all ranks at the same time."""
        return self._timed("single", work, calls)

    def profile(self, *, work: str) -> dict[str, Any]:
        """One call with the profiler on: its kernels. Another one: what of its span is only one kind of work, on a GPU
        by the profiler's trace, on a processor by the clock around each wait for an exchange."""
        ready = self._the_ready
        step = AttentionStep(ready.attention, ready.copies, self._device)

        def call() -> object:
            return getattr(step, work)(ready.copies[0])

        with ready.attention.around():
            if self._device.kind != "cpu" and not self._is_profiler_warm:
                start_profiler_once(self._device)
                self._is_profiler_warm = True
            self._barrier()
            kernels = kernels_of(call, self._device)
            self._barrier()
            if self._device.kind == "cpu":
                overlap = _by_clock(call) if self._place.ranks > 1 else None
            else:
                overlap = overlap_of(trace_of(call, self._device), device_index=torch.device(self._place.device).index)
        return {"kernels": [kernel.model_dump() for kernel in kernels[:KEPT]], "trace": _fields(overlap)}

    def link(self, *, message_bytes: int) -> float:
        """Best seconds in which this rank sends so many bytes to the next and receives as many."""
        to_next = ToNext(self._place.rank, self._place.ranks)
        message = torch.zeros(message_bytes, dtype=torch.uint8, device=self._place.device)
        times = []
        for _ in range(LINK_REPEATS):
            self._barrier()
            started_ns = time.perf_counter_ns()
            to_next.send(message).wait()
            self._device.synchronize()
            times.append((time.perf_counter_ns() - started_ns) / 1e9)
        return min(times)

    @property
    def _the_ready(self) -> Ready:
        """The cell that was prepared."""
        assert self._ready is not None
        return self._ready

    def _plan(self, shape: Shape, *, is_exchanging: bool = True) -> Plan:
        return Plan(shape, self._place, self._variant.kernel, self._splitting.order, is_exchanging)

    def _local(self, shape: Shape) -> Shape:
        """The same layer over as many positions as a rank has."""
        return shape._replace(seq_len=shape.seq_len // self._place.ranks)

    def _open(self, plan: Plan) -> Attention:
        attention: Attention = imported(self._splitting.opener)(plan)
        return attention

    def _attention(self, kind: TimedKind) -> Attention:
        ready = self._the_ready
        if kind == "single":
            return open_single(self._plan(self._local(ready.plan.shape)))
        return ready.attention if kind == "together" else self._open(self._plan(ready.plan.shape, is_exchanging=False))

    def _timed(self, kind: TimedKind, work: str, calls: int) -> dict[str, Any]:
        if kind not in self._steps:
            attention = self._attention(kind)
            together = Attention(attention.call, self._after_barrier(attention))
            self._steps[kind] = AttentionStep(together, self._the_ready.copies, self._device)
        step = self._steps[kind]
        self._device.reset_peak()
        times = step.times(getattr(step, work), calls)
        return {**times._asdict(), "peak_bytes": self._device.peak().allocated_bytes}

    def _after_barrier(self, attention: Attention) -> Callable[[], AbstractContextManager[object]]:
        """The attention's surroundings, in which all ranks begin at the same moment."""

        @contextmanager
        def around() -> Iterator[None]:
            with attention.around():
                self._barrier()
                yield

        return around

    def _barrier(self) -> None:
        if self._place.ranks > 1:
            barrier(self._device)

    def _coded(self, ready: Ready) -> Tensor:
        coded = position_coded(ready.copies[0], ready.plan)
        with ready.attention.around():
            return ready.attention.call(*coded.tensors)

    def _name(self) -> str:
        """Of this rank's device."""
        return "cpu" if self._device.kind == "cpu" else torch.cuda.get_device_name(self._place.device)


def _by_clock(call: Callable[[], object]) -> Overlap:
    """Of a call on a processor, which waits for an exchange or computes."""
    before_s, started_ns = EXCHANGED.waited_s, time.perf_counter_ns()
    call()
    span_s = (time.perf_counter_ns() - started_ns) / 1e9
    waited_s = EXCHANGED.waited_s - before_s
    computed_s = span_s - waited_s
    kinds: dict[Category, KindTime] = {
        "attention": KindTime(computed_s, computed_s),
        "communication": KindTime(waited_s, waited_s),
    }
    return Overlap(span_s, span_s, kinds)


def _fields(overlap: Overlap | None) -> dict[str, Any] | None:
    """Of a `RankTrace`; None where nothing was seen."""
    if overlap is None:
        return None
    kinds = sorted(overlap.kinds.items(), key=lambda item: -item[1].busy_s)
    return {
        "span_s": overlap.span_s,
        "busy_s": overlap.busy_s,
        "kinds": [{"kind": kind, **kind_time._asdict()} for kind, kind_time in kinds],
    }
