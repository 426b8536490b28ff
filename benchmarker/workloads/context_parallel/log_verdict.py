"""What a printed log of ring attention says: its profiler table of one rank, held against its times without profiler.

A ring of N ranks computes N blocks a call on each rank, of which one is on the diagonal. So the calls of the kernels
say how many calls the table is of, and the time without the profiler how long those took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarker.core.numbers import percent
from benchmarker.core.units import seconds
from benchmarker.profiling.categories import category
from benchmarker.profiling.printed_values import ProfilerTable, TableRow
from benchmarker.workloads.attention.demand import BACKWARD_FLOPS, demand_of
from benchmarker.workloads.context_parallel.log_values import RingLog, read_values

SAME = 0.001
"""Two figures of one quantity, as they are printed."""
WRONG_SHARE = 0.01
HELPER = 0.1
"""A kernel that takes less than this part of the longest one computes no block: it prepares or converts."""


@dataclass(frozen=True)
class RingTable:
    """A table of one rank, with what the log around it says."""

    log: RingLog
    table: ProfilerTable
    total_s: float
    """Of all kernels, each counted in full."""
    calls: int
    """Calls that the forward kernels are of."""

    def sum_s(self, purpose: str) -> float:
        """Seconds of the kernels of a purpose, each counted in full."""
        return sum(row.self_device_s or 0.0 for row in self.table.kernels if category(row.name) == purpose)

    def blocks(self, direction: str) -> list[TableRow]:
        """The kernels that compute blocks: `fwd` or `bwd`."""
        rows = [row for row in self.table.kernels if category(row.name) == "attention" and direction in row.name]
        longest_s = max((_mean_s(row) for row in rows), default=0.0)
        return [row for row in rows if _mean_s(row) > HELPER * longest_s]

    @property
    def span_s(self) -> float:
        """What the calls of the table take without the profiler."""
        return self.calls * self.log.call_s


def ring_sentences(tables: Sequence[ProfilerTable], text: str = "") -> tuple[str, ...]:
    """What is hidden, what rate is left, and what of the log is odd; nothing for any other log.

    Args:
        text: The whole log, with what is printed around the table.
    """
    log = read_values(text)
    rings = [ring for table in tables if log and (ring := _ring_in(table, log))]
    if len(rings) != 1:
        return ()
    ring = rings[0]
    rules = (_exposed(ring), _shares(ring), _rate(ring), _kept(ring), _counts(ring), _unsaid(ring))
    return tuple(sentence for rule in rules for sentence in rule)


def _ring_in(table: ProfilerTable, log: RingLog) -> RingTable | None:
    """The table of a ring; None where no kernels of attention and of communication are in it."""
    ring = RingTable(log, table, table.device_s or 0.0, 0)
    forward = sum(row.calls for row in ring.blocks("fwd"))
    if not ring.total_s or not ring.sum_s("communication") or forward < log.ranks:
        return None
    return RingTable(log, table, ring.total_s, forward // log.ranks)


def _exposed(ring: RingTable) -> Iterator[str]:
    """The time in which nothing but communication ran, at most."""
    others_s = ring.total_s - ring.sum_s("communication")
    span = f"{ring.calls} calls of {seconds(ring.log.call_s)} without the profiler, {seconds(ring.span_s)} together"
    left_s = ring.span_s - others_s
    if left_s < 0:
        yield (
            f"exposed communication is not to be told: {span}, are shorter than the {seconds(others_s)} of all other "
            "kernels"
        )
        return
    yield (
        f"exposed communication: about {percent(left_s / ring.span_s)} of the time. The kernels are those of {span}; "
        f"all but communication take {seconds(others_s)} of it, which leaves {seconds(left_s)} for communication that "
        "nothing hides and for waiting, if the profiler cost nothing"
    )
    if ring.total_s > ring.span_s:
        yield (
            f"at least {seconds(ring.total_s - ring.span_s)} of the {seconds(ring.total_s)} of kernels ran at once: a "
            "share of the kernels' sum is no share of the time"
        )


def _shares(ring: RingTable) -> Iterator[str]:
    """Shares of the kernels' sum, and what the log printed in their place."""
    true = {name: ring.sum_s(name) / ring.total_s for name in ("attention", "communication")}
    in_words = " and ".join(f"{name} {percent(share, places=1)}" for name, share in true.items())
    claimed = {"attention": ring.log.attention_percent, "communication": ring.log.communication_percent}
    wrong = {
        name: claim
        for name, claim in claimed.items()
        if claim is not None and abs(claim / 100 - true[name]) > WRONG_SHARE
    }
    if not wrong:
        yield f"of the kernels' sum, {in_words}"
        return
    printed = " and ".join(f"{name} {claim:.2f} %" for name, claim in wrong.items())
    yield f"of the kernels' sum, {in_words}; the log prints {printed}{_why_wrong(ring, wrong)}"


def _why_wrong(ring: RingTable, wrong: dict[str, float]) -> str:
    """The mistake that gives the printed shares: rows of a second or more left out, and a fraction called percent."""
    for name, claim in wrong.items():
        rows = [row for row in ring.table.kernels if category(row.name) == name]
        long = [row for row in rows if (row.self_device_s or 0.0) >= 1]
        fraction = sum(row.self_device_s or 0.0 for row in rows if row not in long) / ring.total_s
        if not long or f"{fraction:.2f}" != f"{claim:.2f}":
            return ""
    left_out = [row.self_device_s or 0.0 for row in ring.table.kernels if (row.self_device_s or 0.0) >= 1]
    return (
        f": it left out the rows that are printed in seconds ({', '.join(map(seconds, left_out))}), and shows a "
        "fraction as a percentage"
    )


def _rate(ring: RingTable) -> Iterator[str]:
    """What the printed rate is of."""
    log = ring.log
    if log.tflops is None:
        return
    forward = demand_of(log.shape._replace(mode="forward")).flops / 1e12
    whole = demand_of(log.shape).flops / 1e12
    halved = ", the causal mask halved" if log.shape.causal else ""
    readings = {f"of forward and backward ({1 + BACKWARD_FLOPS:g} times the forward's{halved})": whole / log.call_s}
    if log.forward_s is not None:
        readings[f"of the forward pass{halved}"] = forward / log.forward_s
    for what, together in readings.items():
        if abs(together / log.ranks / log.tflops - 1) < SAME:
            yield (
                f"{log.tflops:.2f} TFLOP/s is {what}, per GPU; {together:,.0f} on all {log.ranks} together"
                f"{_by_pass(ring)}"
            )
        elif abs(together / log.tflops - 1) < SAME:
            yield f"{log.tflops:.2f} TFLOP/s is {what}, of all {log.ranks} GPUs; {together / log.ranks:.2f} per GPU"


def _by_pass(ring: RingTable) -> str:
    rates = _rates(ring)
    return "; " + ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items()) if rates else ""


def _rates(ring: RingTable) -> dict[str, float]:
    """TFLOP/s a GPU of each pass; nothing where the forward pass was not timed alone."""
    log = ring.log
    if log.forward_s is None or not 0 < log.forward_s < log.call_s:
        return {}
    forward = demand_of(log.shape._replace(mode="forward")).flops / 1e12 / log.ranks
    return {"forward": forward / log.forward_s, "backward": BACKWARD_FLOPS * forward / (log.call_s - log.forward_s)}


def _kept(ring: RingTable) -> Iterator[str]:
    """The rate of the kernels themselves, and what the ring keeps of it."""
    rates, log = _rates(ring), ring.log
    block = demand_of(log.shape._replace(mode="forward")).flops / 1e12 / log.ranks**2
    parts = []
    for name, direction, flops in (("forward", "fwd", block), ("backward", "bwd", BACKWARD_FLOPS * block)):
        rows = ring.blocks(direction)
        if not rows or name not in rates:
            return
        by_row = sorted(round(flops / _mean_s(row)) for row in rows)
        alone = flops * sum(row.calls for row in rows) / sum(row.self_device_s or 0.0 for row in rows)
        span = f"{by_row[0]} to {by_row[-1]}" if by_row[0] != by_row[-1] else f"{by_row[0]}"
        parts.append(f"{span} TFLOP/s {name}, of which the ring keeps {percent(rates[name] / alone)}")
    yield f"the attention kernels alone ran at {', and at '.join(parts)}"


def _counts(ring: RingTable) -> Iterator[str]:
    """Kernels of work that was launched before the recording began."""
    steps = ring.log.ranks - 1
    ran = sum(row.calls for row in ring.table.rows if row.name.startswith("Memcpy DtoD"))
    launched = sum(row.calls for row in ring.table.rows if row.name in ("cudaMemcpyAsync", "hipMemcpyAsync"))
    if not 0 < launched < ran or ran % steps or launched % steps:
        return
    more = sum(row.calls for row in ring.blocks("bwd")) - ring.calls * ring.log.ranks
    also = f" and {more} more backward {'kernels' if more > 1 else 'kernel'} than that" if more > 0 else ""
    yield (
        f"the table holds the kernels of {ran // steps} calls{also}, but the launches of {launched // steps} ({ran} "
        f"copies ran, {launched} were launched): the device was not drained when recording began"
    )


def _unsaid(ring: RingTable) -> Iterator[str]:
    if ring.log.memory_mb is not None:
        yield f"{ring.log.memory_mb:,.0f} MB is of one rank, and the log does not say which"
    yield (
        "not in the log: whether the result is right, the other ranks' times, the rate of the links, and the time "
        "without exchange; `benchmarker run context_parallel` measures them"
    )


def _mean_s(row: TableRow) -> float:
    return (row.self_device_s or 0.0) / row.calls
