"""The bottleneck of a load, from the server's own counters.

The time of a request in the server is the sum of queue, prefill and decode. One of the three is the bottleneck if it
takes most of that time, summed over all requests. A queue has two causes: the limit of requests that the server
computes at once, and a full KV cache. Servers without these counters give no reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarker.comparison.rows import keys_of
from benchmarker.core.formatting import percent
from benchmarker.explain.waterfall import NotExplained
from benchmarker.workloads.serving.record import Load, ServerCounters, ServingRecord

MOST = 0.5  # Share of the time from which a phase is the bottleneck.
PREEMPTED = 0.01  # Preemptions per request from which the KV cache is the bottleneck.
FULL = 0.99  # Share of the KV cache that counts as full.
KV_CAPACITY = "KV capacity"


def bound_of(loads: Sequence[Load]) -> str | None:
    """Return `KV capacity`, `queue`, `prefill` or `decode`; None if the counters support none of them."""
    if not loads:
        return None
    counters = [load.counters for load in loads]
    preempted = sum(each.preemptions or 0 for each in counters) / sum(len(load.errors) for load in loads)
    shares = phase_shares(counters)
    longest = max(shares, key=lambda name: shares[name], default=None)
    is_full = any((each.peak_kv_share or 0.0) >= FULL for each in counters)
    bound = longest if longest and shares[longest] > MOST else None
    return KV_CAPACITY if preempted >= PREEMPTED or (bound == "queue" and is_full) else bound


def phase_shares(counters: Sequence[ServerCounters]) -> dict[str, float]:
    """Return the shares of queue, prefill and decode in the requests' time. If a server lacks one of these counters,
    return the share of queued requests, or {} if it lacks this too."""

    def total(value_of: Callable[[ServerCounters], float | None]) -> float | None:
        values = [value for each in counters if (value := value_of(each)) is not None]
        return sum(values) if len(values) == len(counters) else None

    times = {
        "queue": total(lambda each: each.queued_s),
        "prefill": total(lambda each: each.prefill_s),
        "decode": total(lambda each: each.decode_s),
    }
    known = {name: time_s for name, time_s in times.items() if time_s is not None}
    whole_s = math.fsum(known.values())
    if len(known) == len(times) and whole_s:
        return {name: time_s / whole_s for name, time_s in known.items()}
    queued = total(lambda each: each.queued_share)
    return {} if queued is None else {"queue": queued / len(counters)}


def explained(name: str, records: Sequence[ServingRecord]) -> NotExplained:
    """Return the bottleneck at the largest measured load, in a sentence."""
    cells = [(key, cell) for record in records for key, cell in zip(keys_of(record), record.cells, strict=True)]
    measured = [(key, cell) for key, cell in cells if cell.samples and cell.status == "ok"]
    if not measured:
        reasons = (cell.reason for _, cell in cells if cell.reason)
        return NotExplained(name, next(reasons, "no load of it was measured"))
    largest, _ = max(measured, key=lambda pair: pair[0].size)
    loads = [load for key, cell in measured if key == largest for load in cell.samples]
    facts = [f"{phase} {percent(share)}" for phase, share in phase_shares([load.counters for load in loads]).items()]
    bound = bound_of(loads)
    if bound is None:
        known = f"no phase that the server counts takes most of the time ({', '.join(facts)})"
        return NotExplained(name, known if facts else "the server has no counters of its queue")
    preemptions = sum(load.counters.preemptions or 0 for load in loads)
    facts += [f"{preemptions} preemptions"] if preemptions else []
    return NotExplained(name, bound, allows=f"bound by {bound} at {largest.words}: {', '.join(facts)}")
