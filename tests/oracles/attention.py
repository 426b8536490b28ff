"""Recompute the numbers of attention from the raw JSON of records, without the code of the workload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarker.comparison.recompute import centre, spread

Raw = dict[str, Any]
"""Record as in its file."""
Numbers = dict[str, float | None]
"""Values by the names of `to_row`."""
Round = tuple[str, int]
"""Start of the sweep, and number of the round in it."""


def numbers_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return the numbers of a row except its speed-up.

    Args:
        shape: Length, batch size and mode.
    """
    pairs = [(record, cell) for record in records if (cell := _cell(record, shape))]
    flops = operations(pairs[0][0]["subject"], *shape)
    latency_s = centre(times_by_round(pairs, lambda sample: sample["latency_s"]))
    maxima: dict[str, Callable[[Raw], float | None]] = {
        "peak_bytes": lambda cell: _most(cell["passes"], "forward_peak_bytes", "backward_peak_bytes"),
        "kept_bytes": lambda cell: _most(cell["passes"], "kept_bytes"),
        "error": lambda cell: max(tensor["error"] for tensor in cell["checked"]["tensors"]),
        "peak_memory_bytes": _peak_memory,
    }
    shares = [
        flops / float(np.median([sample["latency_s"] for sample in cell["samples"]])) / limits["matmul_flops_per_s"]
        for record, cell in pairs
        if (limits := record["limits"])
    ]
    return {
        "tflops_flop_per_s": None if latency_s is None else flops / latency_s,
        "forward_s": centre(times_by_round(pairs, lambda sample: part_s(sample, "forward", shape[2]))),
        "backward_s": centre(times_by_round(pairs, lambda sample: part_s(sample, "backward", shape[2]))),
        "matmul": float(np.median(shares)) if shares else None,
        **{name: largest([of(cell) for _, cell in pairs]) for name, of in maxima.items()},
        "floor_s": floor_s(pairs, flops, lambda record: least_bytes(record, *shape)),
        "rounds": len(times_by_round(pairs, lambda sample: sample["latency_s"])),
        "runs": sum(len(cell["samples"]) for _, cell in pairs),
    }


def spreads_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return intervals and deviations of latency and rate."""
    pairs = [(record, cell) for record in records if (cell := _cell(record, shape))]
    flops = operations(pairs[0][0]["subject"], *shape)
    times = list(times_by_round(pairs, lambda sample: sample["latency_s"]).values())
    repeats = [sample["latency_s"] for _, cell in pairs for sample in cell["samples"]]
    rates, of_repeats = [flops / time_s for time_s in times], [flops / time_s for time_s in repeats]
    return {**spread("latency_s", times, repeats), **spread("tflops", rates, of_repeats)}


def operations(subject: Raw, seq_len: int, batch_size: int, mode: str) -> int:
    """Return the FLOPs of two products over the pairs that the mask allows; 3.5 times as many with gradients."""
    if subject["causal"]:
        pairs = sum(min(query + 1, subject["window"] or seq_len) for query in range(seq_len))
    else:
        pairs = seq_len**2
    forward = 2 * 2 * batch_size * subject["heads"] * subject["head_dim"] * pairs
    return forward if mode == "forward" else round(3.5 * forward)


def times_by_round(pairs: Sequence[tuple[Raw, Raw]], of: Callable[[Raw], float | None]) -> dict[Round, float]:
    """Return one time per round of a sweep: the geometric mean over processes of the median of their samples."""
    medians: dict[Round, list[float]] = defaultdict(list)
    for record, cell in pairs:
        if values := [value for sample in cell["samples"] if (value := of(sample)) is not None]:
            medians[record["sweep"] or "", record["round"]].append(float(np.median(values)))
    return {number: float(np.exp(np.mean(np.log(values)))) for number, values in sorted(medians.items())}


def part_s(sample: Raw, name: str, mode: str) -> float | None:
    value: float | None = sample["latency_s"] if name == mode == "forward" else sample["parts_s"].get(name)
    return value


def floor_s(pairs: Sequence[tuple[Raw, Raw]], flops: int, bytes_of: Callable[[Raw], int]) -> float | None:
    """Return the larger of arithmetic time and memory time, as the geometric mean over processes."""
    floors = []
    for record, _ in pairs:
        if limits := record["limits"]:
            moving_s = bytes_of(record) / max(limits["read_bytes_per_s"], limits["copy_bytes_per_s"])
            floors.append(max(flops / limits["matmul_flops_per_s"], moving_s))
    return float(np.exp(np.mean(np.log(floors)))) if floors else None


def least_bytes(record: Raw, seq_len: int, batch_size: int, mode: str) -> int:
    """Return bytes of q, k, v and o; with gradients also of q, k, v, o, do, dq, dk, dv, and two float32 per row."""
    subject = record["subject"]
    heads, kv_heads = subject["heads"], subject["kv_heads"] or subject["heads"]
    element = 2 if record["variant"]["dtype"] in ("bfloat16", "float16") else 4
    one_head = batch_size * seq_len * subject["head_dim"] * element
    forward = one_head * (2 * heads + 2 * kv_heads)
    if mode == "forward":
        return forward
    return forward + one_head * (4 * heads + 4 * kv_heads) + 2 * 4 * batch_size * heads * seq_len


def _cell(record: Raw, shape: Sequence[Any]) -> Raw | None:
    """Return the measured cell of the shape."""
    return next(
        (
            cell
            for cell in record["cells"]
            if [cell["seq_len"], cell["batch_size"], cell["mode"]] == list(shape) and cell["status"] == "ok"
        ),
        None,
    )


def _most(sizes: Raw | None, *names: str) -> float | None:
    return largest([sizes[name] for name in names]) if sizes else None


def largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _peak_memory(cell: Raw) -> float | None:
    """Return the peak of the repeats. On a CPU they have none: return the growth since before the load."""
    peaks = [sample["peak_allocated_bytes"] for sample in cell["samples"]]
    growth: float | None = cell["memory"].get("resident_growth_bytes")
    return growth if None in peaks else max(peaks)
