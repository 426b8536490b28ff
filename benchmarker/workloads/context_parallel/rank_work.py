"""Work of every rank, rank 0 included: make its shard of the inputs, compute, exchange, and read its own clock.

Rank 0 sends the name of a method (see `distributed.ranks`), which all ranks run at the same time. The other ranks
answer in JSON.

The gathered result is compared with float64 as in the workload attention. All rows of all tensors are compared with the
result of a single GPU with the same kernel, which detects gradients of keys and values that were sent to a wrong rank.
A third call has values that encode their positions, and its exact result is known: it detects a wrong order of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarker.core.errors import WrongResultError
from benchmarker.distributed.rank import Rank, barrier
from benchmarker.hardware.device import Device, find_device
from benchmarker.measure.profile_repeat import trace_of, warm_up_profiler
from benchmarker.profiling.chrome_trace import DEVICE_CATEGORIES, alone_ns, complete_events, device_interval, span_of
from benchmarker.profiling.kernel_categories import category
from benchmarker.workloads.attention.attention_bench import check, input_bytes, make_inputs, refuse_inaccurate
from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel import spec, zigzag
from benchmarker.workloads.context_parallel.exchange import COUNT, Plan, open_single, open_torch, open_ulysses, send
from benchmarker.workloads.context_parallel.record import ContextParallelChecked, RankTrace, TensorDistance, WorkKind
from benchmarker.workloads.context_parallel.ring import open_ring
from benchmarker.workloads.operation import operation_bench, operation_call

OPENERS: dict[str, Callable[[Plan], operation_call.Operation]] = {
    "zigzag": open_ring,
    "ring": open_ring,
    "ulysses": open_ulysses,
    "allgather": partial(open_torch, rotation="allgather"),
    "alltoall": partial(open_torch, rotation="alltoall"),
    "single": open_single,
}
"""Function that prepares the operation of each variant in `spec.VARIANTS`."""
LINK_REPEATS = 5
ORDER_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}  # Largest error of `position_coded` that passes.
TimedKind = Literal["together", "alone", "single"]
"""`together`: with exchange; `alone`: without exchange; `single`: attention over seq_len / ranks positions per rank."""


def _shard_of(tensor: Tensor, plan: Plan) -> Tensor:
    spans = zigzag.spans_of(plan.order, plan.rank, plan.ranks, tensor.shape[2])
    return torch.cat([tensor[:, :, first:end] for first, end in spans], dim=2)


def shard(inputs: operation_call.CallInputs, plan: Plan) -> operation_call.CallInputs:
    return inputs.mapped(lambda tensor: _shard_of(tensor, plan))


def gather(results: operation_call.Results, plan: Plan) -> operation_call.Results:
    """Gather the results of all ranks. Return tensors with all rows in order on rank 0, {} on the other ranks."""
    full: operation_call.Results = {}
    for name, result in results.items():
        own = result.detach().contiguous()
        shards = [own]
        if plan.ranks > 1:
            shards = [torch.empty_like(own) for _ in range(plan.ranks)] if plan.rank == 0 else []
            dist.gather(own, shards or None, dst=0)
        chunks: list[tuple[tuple[int, int], Tensor]] = []
        for rank, rows in enumerate(shards):
            spans = zigzag.spans_of(plan.order, rank, plan.ranks, own.shape[2] * plan.ranks)
            chunks += zip(spans, rows.chunk(len(spans), dim=2), strict=True)
        if chunks:
            full[name] = torch.cat([chunk for _, chunk in sorted(chunks, key=lambda entry: entry[0])], dim=2)
    return full


def position_coded(like: operation_call.CallInputs, plan: Plan) -> operation_call.CallInputs:
    """Return a rank's inputs, with `like`'s shapes, for which the result shows the positions each row attended to.

    Queries and keys are 0, so that all visible positions have equal weight; the value at position j is
    (j + 1) / length. Row i of causal attention is then the mean of the first i + 1 values, (i + 2) / (2 length).
    """
    length, value = plan.shape.seq_len, like.named["v"]
    codes = torch.arange(1, length + 1, dtype=torch.float64, device=value.device) / length
    own = _shard_of(codes.reshape(1, 1, length, 1), plan)
    zeros = {name: torch.zeros_like(like.named[name]) for name in ("q", "k")}
    return operation_call.CallInputs({**zeros, "v": own.to(value.dtype).expand(value.shape).contiguous()}, None)


def refuse_wrong(checked: ContextParallelChecked, dtype: str) -> None:
    refuse_inaccurate(checked)
    for tensor in checked.distances:
        if tensor.distance > checked.tolerance:
            raise WrongResultError(
                f"wrong result: {tensor.tensor} is off by {tensor.distance:.2g} of its size from one GPU's with the "
                f"same kernel; {checked.tolerance:.0e} is allowed"
            )
    if checked.order_error is not None and checked.order_error > ORDER_TOLERANCE[dtype]:
        raise WrongResultError(
            f"wrong result: rows attend to wrong positions: a mean is off by {checked.order_error:.2g}"
        )


def serve_rank_0(rank: Rank, options: dict[str, Any]) -> None:
    work = RankWork(rank.number, rank.count, rank.device.torch_name, **options)
    rank.serve(lambda message: getattr(work, message["do"])(**message["with"]))


class RankWork:
    def __init__(self, rank: int, ranks: int, device: str, *, subject: dict[str, Any], variant: dict[str, Any]) -> None:
        self._rank, self.ranks = rank, ranks
        self._subject = spec.ContextParallelSubject(**subject)
        self._variant = spec.ContextParallelVariant(**variant)
        self._splitting = spec.splitting_of(self._variant.variant)
        self._device = find_device(device)
        self._plan: Plan
        self._operation: operation_call.Operation
        self._copies: list[operation_call.CallInputs] = []
        self._steps: dict[TimedKind, operation_bench.CallStep] = {}
        self._is_profiler_warm = False
        if self._device.kind == "cpu":
            # The ranks share the cores of this host.
            torch.set_num_threads(max(1, torch.get_num_threads() // ranks))

    def prepare(self, *, seq_len: int, mode: str, cache_bytes: int | None) -> dict[str, Any]:
        """Make copies of this rank's inputs that together exceed the cache; run one call and count its sent bytes."""
        self._copies = []
        self._steps.clear()
        self._device.release()
        name = self._device.torch_name
        shape = spec.shape_of(self._subject, seq_len, mode)
        self._plan = Plan(shape, self._rank, self.ranks, name, self._variant.kernel, self._splitting.order)
        first = shard(make_inputs(shape, name, seed=self._subject.seed), self._plan)
        count = operation_call.copies_needed(
            input_bytes(_local(shape, self.ranks)), cache_bytes, kind=self._device.kind
        )
        self._operation = OPENERS[self._variant.variant](self._plan)
        self._copies = first.copies(count)
        self._device.release()
        before = COUNT.sent_bytes
        with operation_bench.missing_kernel_is_unsupported():
            operation_call.results_of(self._operation, first)
        sent_bytes = None if self._splitting.exchange == "torch" else COUNT.sent_bytes - before
        device_name = "cpu" if self._device.kind == "cpu" else torch.cuda.get_device_name(name)
        return {"input_copies": count, "device_name": device_name, "device": name, "sent_bytes": sent_bytes}

    def correct(self) -> ContextParallelChecked | None:
        """Gather the results of all ranks. Compare them on rank 0; return None on the other ranks. Raises
        WrongResultError if two calls return the same memory, or a number is not finite."""
        plan, operation, copies = self._plan, self._operation, self._copies
        full = make_inputs(plan.shape, plan.device, seed=self._subject.seed + 1)
        results = gather(operation_call.fresh_results(operation, copies[0], partial(shard, full, plan)), plan)
        with operation.around():
            coded = gather({"o": operation.call(*position_coded(copies[0], plan).tensors)}, plan)
        checked = self._compared(results, full, coded["o"]) if self._rank == 0 else None
        del full, results
        self._device.release()
        return checked

    def _compared(
        self, results: operation_call.Results, inputs: operation_call.CallInputs, coded: Tensor
    ) -> ContextParallelChecked:
        shape, distances = self._plan.shape, []
        checked = check(results, inputs, shape)
        if self._splitting.exchange != "none":
            expected = operation_call.results_of(open_single(self._plan), inputs)
            errors = {tensor.tensor: tensor.error for tensor in check(expected, inputs, shape).tensors}
            for name, result in results.items():
                distance = operation_call.relative_error(result, expected[name])
                distances.append(TensorDistance(tensor=name, distance=distance, single_error=errors.get(name)))
        length = coded.shape[2]
        means = torch.arange(2, length + 2, dtype=torch.float64, device=coded.device).reshape(1, length, 1)
        means /= 2 * length
        # By head, because a float64 copy of all heads may not fit the GPU.
        order_errors = [((head.double() - means).abs() / means).max() for head in coded.unbind(1)]
        order_error = float(torch.stack(order_errors).max())
        return ContextParallelChecked(**dict(checked), distances=tuple(distances), order_error=order_error)

    def times(self, *, work: str, calls: int, kind: TimedKind) -> dict[str, Any]:
        """Time `calls` calls in a row after a barrier; `work` is `forward` or `forward_backward`. Raises
        UnsupportedError if the exchange cannot be left out."""
        if kind not in self._steps:
            plan, operation = self._plan, self._operation
            if kind == "alone":
                operation = OPENERS[self._variant.variant](replace(plan, is_exchanging=False))
            elif kind == "single":
                operation = open_single(replace(plan, shape=_local(plan.shape, self.ranks)))

            @contextmanager
            def after_barrier() -> Iterator[None]:
                with operation.around():
                    self._barrier()
                    yield

            self._steps[kind] = operation_bench.CallStep(
                operation_call.Operation(operation.call, after_barrier), self._copies, self._device
            )
        step = self._steps[kind]
        self._device.reset_peak()
        times = step.times(getattr(step, work), calls)
        return {**times._asdict(), "peak_bytes": self._device.peak_memory().allocated_bytes}

    def profile(self, *, work: str) -> dict[str, Any]:
        """Profile one call for its kernels, and measure in a second call how communication overlaps computation: by the
        profiler's trace on a GPU, by the clock around each wait for an exchange on a CPU."""
        operation, copies = self._operation, self._copies
        run = partial(getattr(operation_bench.CallStep(operation, copies, self._device), work), copies[0])
        trace: RankTrace | None = None
        with operation.around():
            if self._device.kind != "cpu" and not self._is_profiler_warm:
                warm_up_profiler(self._device)
                self._is_profiler_warm = True
            self._barrier()
            kernels = operation_bench.kernels_of(run, self._device)
            self._barrier()
            if self._device.kind != "cpu":
                trace = _trace_by_profiler(run, self._device)
            elif self.ranks > 1:
                trace = _trace_by_clock(run)
        seen = [kernel.model_dump() for kernel in kernels[: operation_bench.RECORDED_KERNELS]]
        return {"kernels": seen, "trace": trace and trace.model_dump()}

    def link(self, *, message_bytes: int) -> float:
        """Send a message to the next rank while receiving one, five times; return the least seconds of an exchange."""
        message = torch.zeros(message_bytes, dtype=torch.uint8, device=self._device.torch_name)
        times = []
        for _ in range(LINK_REPEATS):
            self._barrier()
            started_ns = time.perf_counter_ns()
            send(self._plan, message).wait()
            self._device.synchronize()
            times.append((time.perf_counter_ns() - started_ns) / 1e9)
        return min(times)

    def _barrier(self) -> None:
        if self.ranks > 1:
            barrier(self._device)


def _local(shape: AttentionShape, ranks: int) -> AttentionShape:
    return shape._replace(seq_len=shape.seq_len // ranks)


def _trace_by_profiler(call: Callable[[], object], device: Device) -> RankTrace | None:
    """Return the busy times of the device by category; None without kernels, if the driver's tracer is missing."""
    intervals = [device_interval(event) for event in complete_events(trace_of(call, device), DEVICE_CATEGORIES)]
    if len({interval.lane[0] for interval in intervals}) > 1:
        index = torch.device(device.torch_name).index
        intervals = [interval for interval in intervals if interval.lane[0] == index]
    if not intervals:
        return None
    busy_ns = sum(alone_ns(intervals))
    kinds = []
    starts = sorted((interval.start_ns, category(interval.name)) for interval in intervals)
    for kind in dict.fromkeys(kind for _, kind in starts):
        of_kind_ns = sum(alone_ns([interval for interval in intervals if category(interval.name) == kind]))
        others_ns = sum(alone_ns([interval for interval in intervals if category(interval.name) != kind]))
        kinds.append(WorkKind(kind=kind, busy_s=of_kind_ns / 1e9, alone_s=(busy_ns - others_ns) / 1e9))
    longest_first = tuple(sorted(kinds, key=lambda work: -work.busy_s))
    return RankTrace(span_s=span_of(intervals), busy_s=busy_ns / 1e9, kinds=longest_first)


def _trace_by_clock(call: Callable[[], object]) -> RankTrace:
    before_s, started_ns = COUNT.waited_s, time.perf_counter_ns()
    call()
    span_s = (time.perf_counter_ns() - started_ns) / 1e9
    waited_s = COUNT.waited_s - before_s
    seconds = sorted({"communication": waited_s, "attention": span_s - waited_s}.items(), key=lambda item: -item[1])
    kinds = tuple(WorkKind(kind=kind, busy_s=taken_s, alone_s=taken_s) for kind, taken_s in seconds)
    return RankTrace(span_s=span_s, busy_s=span_s, kinds=kinds)
