"""Recompute the numbers of text generation from the raw JSON of records, without the code of the workload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarker.comparison.recompute import centre, spread

Raw = dict[str, Any]
"""Record as in its file."""
Numbers = dict[str, float | None]
"""Values by the names of `to_row`."""
Round = tuple[str, int]
"""Start of the sweep, and number of the round in it."""


def times_by_round(records: Sequence[Raw], shape: Sequence[int], field: str) -> dict[Round, float]:
    """Return one time per round of a sweep: the geometric mean over processes of the median of their samples.

    Args:
        shape: Batch size, prompt tokens, new tokens, index among the cells of these sizes, and depth.
    """
    medians: dict[Round, list[float]] = defaultdict(list)
    for record in records:
        values = [sample[field] for sample in _samples(record, shape) if sample[field] is not None]
        if values:
            medians[_round(record)].append(float(np.median(values)))
    return {number: float(np.exp(np.mean(np.log(medians[number])))) for number in sorted(medians)}


def numbers_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """Return the numbers of a row except its speed-up."""
    batch_size, _, new_tokens, *_ = shape
    times = {field: times_by_round(records, shape, field) for field in ("latency_s", "ttft_s", "tpot_s")}
    latency_s, ttft_s, tpot_s = map(centre, times.values())
    loads = [record["load"] for record in records if record["load"]]
    # An external engine reports the bytes of packed weights, but not the parameters.
    externals = [facts for record in records if (facts := (record["engine"] or {}).get("external"))]
    peaks = [_peak(cell) for record in records if (cell := _cell(record, shape)) and cell["samples"]]
    setups = [record["engine"]["setup_s"] for record in records if record["engine"]]
    setups = [setup_s for setup_s in setups if setup_s is not None]
    return {
        "latency_s": latency_s,
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "tokens_per_s": None if latency_s is None else new_tokens * batch_size / latency_s,
        "decode_tokens_per_s": None if tpot_s is None else batch_size / tpot_s,
        "peak_memory_bytes": max((peak for peak in peaks if peak is not None), default=None),
        "weight_bytes": max(
            (facts["weight_bytes"] for facts in loads or externals if facts["weight_bytes"]), default=None
        ),
        "bits_per_weight": max((8 * load["weight_bytes"] / load["parameters"] for load in loads), default=None),
        "load_s": float(np.median([load["load_s"] for load in loads])) if loads else None,
        "setup_s": float(np.median(setups)) if setups else None,
        **_setup_of(records),
        "kernels_per_token": _kernels_of(records, shape),
        **_limits_of(records, shape),
        **_energy_of(records, shape),
        "rounds": len(times_by_round(records, shape, "latency_s")),
        "runs": sum(len(_samples(record, shape)) for record in records),
    }


def _setup_of(records: Sequence[Raw]) -> Numbers:
    """Return the set-up times with an empty and with a filled compiler cache."""
    facts = [record["engine"] for record in records if record["engine"]]
    numbers: Numbers = {}
    for state in ("cold", "warm"):
        times = [
            engine["setup_s"]
            for engine in facts
            if engine.get("setup_cache") == state and engine["setup_s"] is not None
        ]
        numbers[f"setup_{state}_s"] = float(np.median(times)) if times else None
    return numbers


def _kernels_of(records: Sequence[Raw], shape: Sequence[int]) -> float | None:
    """Return the kernels of a decode step at the shape.

    The last valid cell has a counted number. Other cells have the number of kernels in their graph, which old records
    contain for the last cell only.
    """
    kernel_counts: list[float] = []
    for record in records:
        cell, facts = _cell(record, shape), record["engine"] or {}
        if not cell or not cell["samples"]:
            continue
        good = [measured for measured in record["cells"] if measured["status"] == "ok"]
        candidates = [
            facts.get("kernels_per_token") if cell is good[-1] else None,
            (cell.get("step") or {}).get("graph_kernels"),
            facts.get("graph_kernels") if cell is record["cells"][-1] and not cell.get("step") else None,
        ]
        kernel_counts += [count for count in candidates if count][:1]
    return float(np.median(kernel_counts)) if kernel_counts else None


def _energy_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """Return joules computed from the measured windows; the formulas are in docs/energy.md."""
    batch_size, _, new_tokens, *_ = shape
    by_round: dict[Round, list[float]] = defaultdict(list)
    net, decode, prefill = [], [], []
    for record in records:
        energy = (_cell(record, shape) or {}).get("energy")
        if not energy:
            continue
        generation_j, generation_s = _per_generation(energy["generation"])
        by_round[_round(record)].append(generation_j / (new_tokens * batch_size))
        if energy["idle_power_w"]:
            net.append((generation_j - energy["idle_power_w"] * generation_s) / (new_tokens * batch_size))
        if energy["prefill"]:
            prompt_j, _ = _per_generation(energy["prefill"])
            prefill.append(prompt_j / batch_size)
            if new_tokens > 1:
                decode.append((generation_j - prompt_j) / ((new_tokens - 1) * batch_size))
    rounds = {number: float(np.exp(np.mean(np.log(values)))) for number, values in by_round.items()}
    means = {"net_per_token_j": net, "decode_per_token_j": decode, "prefill_j": prefill}
    return {
        "energy_per_token_j": centre(rounds),
        **{f"energy_{name}": float(np.mean(values)) if values else None for name, values in means.items()},
    }


def _per_generation(windows: Sequence[Raw]) -> tuple[float, float]:
    """Return joules and seconds per generation from the totals of the windows."""
    joules, seconds, generations = (
        sum(window[field] for window in windows) for field in ("energy_j", "seconds", "generations")
    )
    return joules / generations, seconds / generations


def _limits_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """Return floor, MBU and prefill MFU by their definitions: the geometric means over processes."""
    values_of: dict[str, list[float]] = {"floor_s": [], "mbu": [], "prefill_mfu": []}
    for record in records:
        cell, limits = _cell(record, shape), record.get("limits")
        demand = cell.get("demand") if cell and cell["samples"] else None
        if cell is None or not limits or not demand:
            continue
        read = demand["weight_bytes"] + demand["kv_bytes"]
        bandwidth = max(limits["read_bytes_per_s"], limits["copy_bytes_per_s"])
        rate = limits["matmul_flops_per_s"]
        values_of["floor_s"].append(max(read / bandwidth, demand["decode_flops"] / rate))
        tpots = [sample["tpot_s"] for sample in cell["samples"] if sample["tpot_s"] is not None]
        ttfts = [sample["ttft_s"] for sample in cell["samples"] if sample["ttft_s"] is not None]
        if tpots:
            values_of["mbu"].append(read / bandwidth / float(np.median(tpots)))
        if ttfts:
            values_of["prefill_mfu"].append(demand["prefill_flops"] / rate / float(np.median(ttfts)))
    return {name: float(np.exp(np.mean(np.log(values)))) if values else None for name, values in values_of.items()}


def spreads_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """Return intervals and deviations of each time and rate, None if there are none."""
    tokens = shape[0] * shape[2]
    numbers: Numbers = {}
    for field in ("latency_s", "ttft_s", "tpot_s"):
        by_round = list(times_by_round(records, shape, field).values())
        repeats = [
            sample[field] for record in records for sample in _samples(record, shape) if sample[field] is not None
        ]
        numbers |= spread(field, by_round, repeats)
        if field == "latency_s":
            rates = [tokens / latency_s for latency_s in by_round]
            numbers |= spread("tokens_per_s", rates, [tokens / latency_s for latency_s in repeats])
    return numbers


def _round(record: Raw) -> Round:
    return record.get("sweep") or "", record["round"]


def _cell(record: Raw, shape: Sequence[int]) -> Raw | None:
    """Return the measured cell of the shape."""
    batch_size, prompt_tokens, new_tokens, which, depth = shape
    cells = [
        cell
        for cell in record["cells"]
        if (cell["batch_size"], cell["prompt_tokens"], cell["new_tokens"]) == (batch_size, prompt_tokens, new_tokens)
        and cell.get("depth", 0) == depth
    ]
    texts = [cell.get("text") for cell in cells]
    numbers = [at if text is None else text for at, text in enumerate(texts)]
    return next((cell for at, cell in zip(numbers, cells, strict=True) if at == which and cell["status"] == "ok"), None)


def _samples(record: Raw, shape: Sequence[int]) -> list[Raw]:
    cell = _cell(record, shape)
    return list(cell["samples"]) if cell else []


def _peak(cell: Raw) -> float | None:
    """Return the peak of the repeats.

    For an engine in a separate process, return the peak of the driver on a GPU, or the growth since before the load on
    a CPU.
    """
    peaks = [sample["peak_allocated_bytes"] for sample in cell["samples"] if sample["peak_allocated_bytes"] is not None]
    memory = cell["memory"]
    if peaks:
        return float(max(peaks) + (memory.get("graph_pool_bytes") or 0))
    of_driver, growth = memory.get("peak_allocated_bytes"), memory.get("resident_growth_bytes")
    return of_driver if of_driver is not None else growth
