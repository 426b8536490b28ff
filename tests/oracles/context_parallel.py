"""Recompute the numbers of context parallel attention from the raw JSON of records, without the workload's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats

from benchmarker.comparison.recompute import centre, spread
from tests.oracles.attention import Numbers, Raw, part_s, times_by_round

Fact = Callable[[Raw, Raw], float | None]
"""Function of a record and one of its cells."""


def numbers_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return the numbers of a row except its speed-up.

    Args:
        shape: Ranks, length and mode.
    """
    pairs = _pairs(records, shape)
    gpus, flops = pairs[0][1]["gpus"], operations(pairs[0][0]["subject"], shape[1], shape[2])
    local = operations(pairs[0][0]["subject"], shape[1] // shape[0], shape[2])
    latency_s = centre(times_by_round(pairs, lambda sample: sample["latency_s"]))
    # Each process measures one GPU alone.
    single_s = stats.gmean([cell["single_s"] for _, cell in pairs]) if pairs[0][1]["single_s"] else None
    assert latency_s is not None
    facts: dict[str, Fact] = {
        "exposed": _exposed,
        "exposed_trace": lambda record, cell: _traced(cell["traces"]),
        "hidden": _hidden,
        "imbalance": lambda record, cell: max(cell["alone_s"]) / np.mean(cell["alone_s"]) if cell["alone_s"] else None,
        "sent_bytes": lambda record, cell: cell["sent_bytes"],
        "needed_link": _needed,
        "measured_link": lambda record, cell: cell["link_bytes_per_s"],
    }
    maxima: dict[str, Fact] = {
        "error": lambda record, cell: max(tensor["error"] for tensor in cell["checked"]["tensors"]),
        "error_ratio": lambda record, cell: _ratio(cell["checked"]),
    }
    return {
        "tflops_flop_per_s": flops / latency_s,
        "tflops_gpu_flop_per_s": flops / gpus / latency_s,
        "forward_s": centre(times_by_round(pairs, lambda sample: part_s(sample, "forward", shape[2]))),
        "backward_s": centre(times_by_round(pairs, lambda sample: part_s(sample, "backward", shape[2]))),
        "scaling": None if single_s is None else flops / gpus / latency_s / (local / single_s),
        **{name: _of(pairs, fact, np.median) for name, fact in facts.items()},
        **{name: _of(pairs, fact, max) for name, fact in maxima.items()},
        "rounds": len({(record["sweep"], record["round"]) for record, _ in pairs}),
        "runs": sum(len(cell["samples"]) for _, cell in pairs),
    }


def spreads_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return intervals and deviations of latency and rate."""
    pairs = _pairs(records, shape)
    flops = operations(pairs[0][0]["subject"], shape[1], shape[2])
    times = list(times_by_round(pairs, lambda sample: sample["latency_s"]).values())
    repeats = [sample["latency_s"] for _, cell in pairs for sample in cell["samples"]]
    rates, of_repeats = [flops / time_s for time_s in times], [flops / time_s for time_s in repeats]
    return {**spread("latency_s", times, repeats), **spread("tflops", rates, of_repeats)}


def operations(subject: Raw, seq_len: int, mode: str) -> int:
    """Return the FLOPs of two products over all causal pairs; 3.5 times as many with gradients."""
    pairs = sum(query + 1 for query in range(seq_len))
    forward = 2 * 2 * subject["batch_size"] * subject["heads"] * subject["head_dim"] * pairs
    return forward if mode == "forward" else round(3.5 * forward)


def handed_on(record: Raw, cell: Raw) -> int | None:
    """Return the bytes that a rank of a ring sends per block: keys and values of its positions.

    With gradients, a rank also sends keys and values again and their gradients, which are float32 sums if more than one
    rank adds to them.
    """
    if record["variant"]["variant"] not in ("ring", "zigzag"):
        return None
    subject = record["subject"]
    heads = subject["kv_heads"] or subject["heads"]
    element = 4 if subject["dtype"] == "float32" else 2
    numbers = 2 * subject["batch_size"] * heads * subject["head_dim"] * cell["seq_len"] // cell["ranks"]
    of_gradient = element if cell["ranks"] == 2 else 4
    return int(numbers * (element if cell["mode"] == "forward" else 2 * element + of_gradient))


def _pairs(records: Sequence[Raw], shape: Sequence[Any]) -> list[tuple[Raw, Raw]]:
    return [
        (record, cell)
        for record in records
        for cell in record["cells"]
        if [cell["ranks"], cell["seq_len"], cell["mode"]] == list(shape) and cell["status"] == "ok"
    ]


def _of(pairs: Sequence[tuple[Raw, Raw]], fact: Fact, combine: Callable[[list[float]], Any]) -> float | None:
    values = [value for record, cell in pairs if (value := fact(record, cell)) is not None]
    return float(combine(values)) if values else None


def _latency_s(cell: Raw) -> float:
    return float(np.median([sample["latency_s"] for sample in cell["samples"]]))


def _alone(trace: Raw) -> float:
    """Return the seconds in which only communication ran."""
    return float(sum(kind["alone_s"] for kind in trace["kinds"] if kind["kind"] == "communication"))


def _traced(traces: Sequence[Raw]) -> float | None:
    """Return the share of exposed communication in the span of the rank that computes longest."""
    if not traces:
        return None
    trace = max(traces, key=lambda trace: trace["busy_s"] - _alone(trace))
    return float(_alone(trace) / trace["span_s"])


def _exposed(record: Raw, cell: Raw) -> float | None:
    share = 1 - max(cell["alone_s"]) / _latency_s(cell) if cell["alone_s"] else None
    return None if share is not None and share < -0.05 else share


def _hidden(record: Raw, cell: Raw) -> float | None:
    if not cell["alone_s"] or not cell["link_bytes_per_s"] or not cell["demand"]["sent_bytes"]:
        return None
    exchange_s = cell["demand"]["sent_bytes"] / cell["link_bytes_per_s"]
    if _exposed(record, cell) is None:
        return None
    exposed_s = max(0.0, _latency_s(cell) - max(cell["alone_s"]))
    return float(max(0.0, 1 - exposed_s / exchange_s))


def _needed(record: Raw, cell: Raw) -> float | None:
    sent_bytes = handed_on(record, cell)
    if sent_bytes is None or not cell["alone_s"]:
        return None
    return float(sent_bytes / (np.mean(cell["alone_s"]) / cell["ranks"]))


def _ratio(checked: Raw) -> float | None:
    """Return the largest ratio of a tensor's error to its error in one process."""
    errors = {tensor["tensor"]: tensor["error"] for tensor in checked["tensors"]}
    single = {one["tensor"]: one["single_error"] for one in checked["distances"] if one["single_error"]}
    return max((errors[name] / single[name] for name in single), default=None)
