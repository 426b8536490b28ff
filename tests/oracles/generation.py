"""The numbers of text generation, computed a second time from the files' raw JSON: no code of the workload is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarker.comparison.recompute import centre, spread

Raw = dict[str, Any]
"""One record as its file says it."""
Numbers = dict[str, float | None]
"""By the names of `to_row`."""
Round = tuple[str, int]
"""Of which sweep, and which."""


def times_by_round(records: Sequence[Raw], shape: Sequence[int], field: str) -> dict[Round, float]:
    """One number a round of a sweep: the median of each process's samples, and their geometric mean of several.

    Args:
        shape: Batch size, prompt tokens, new tokens, which of the cells of that shape, and its depth.
    """
    found: dict[Round, list[float]] = defaultdict(list)
    for record in records:
        values = [one[field] for one in _samples(record, shape) if one[field] is not None]
        if values:
            found[_round(record)].append(float(np.median(values)))
    return {number: float(np.exp(np.mean(np.log(found[number])))) for number in sorted(found)}


def numbers_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """What a row says apart from its speed-up."""
    batch_size, _, new_tokens, *_ = shape
    times = {field: times_by_round(records, shape, field) for field in ("latency_s", "ttft_s", "tpot_s")}
    latency_s, ttft_s, tpot_s = map(centre, times.values())
    loads = [record["load"] for record in records if record["load"]]
    # Of packed weights an engine counts the bytes, and not the parameters.
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
        "weight_bytes": max((one["weight_bytes"] for one in loads or externals if one["weight_bytes"]), default=None),
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
    """Setting up with the compiler's cache empty and filled."""
    facts = [record["engine"] for record in records if record["engine"]]
    found: Numbers = {}
    for state in ("cold", "warm"):
        times = [one["setup_s"] for one in facts if one.get("setup_cache") == state and one["setup_s"] is not None]
        found[f"setup_{state}_s"] = float(np.median(times)) if times else None
    return found


def _kernels_of(records: Sequence[Raw], shape: Sequence[int]) -> float | None:
    """What a step launches at that shape: counted at the last good cell; of the others their graphs say it, and in old
    records the runtime, of the very last cell."""
    known: list[float] = []
    for record in records:
        cell, facts = _cell(record, shape), record["engine"] or {}
        if not cell or not cell["samples"]:
            continue
        good = [one for one in record["cells"] if one["status"] == "ok"]
        said = [
            facts.get("kernels_per_token") if cell is good[-1] else None,
            (cell.get("step") or {}).get("graph_kernels"),
            facts.get("graph_kernels") if cell is record["cells"][-1] and not cell.get("step") else None,
        ]
        known += [count for count in said if count][:1]
    return float(np.median(known)) if known else None


def _energy_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """Joules from the counted windows; the formulas are in docs/energy.md."""
    batch_size, _, new_tokens, *_ = shape
    by_round: dict[Round, list[float]] = defaultdict(list)
    net, decode, prompts = [], [], []
    for record in records:
        energy = (_cell(record, shape) or {}).get("energy")
        if not energy:
            continue
        whole_j, whole_s = _a_generation(energy["generation"])
        by_round[_round(record)].append(whole_j / (new_tokens * batch_size))
        if energy["idle_power_w"]:
            net.append((whole_j - energy["idle_power_w"] * whole_s) / (new_tokens * batch_size))
        if energy["prefill"]:
            prompt_j, _ = _a_generation(energy["prefill"])
            prompts.append(prompt_j / batch_size)
            if new_tokens > 1:
                decode.append((whole_j - prompt_j) / ((new_tokens - 1) * batch_size))
    rounds = {number: float(np.exp(np.mean(np.log(values)))) for number, values in by_round.items()}
    means = {"net_per_token_j": net, "decode_per_token_j": decode, "prefill_j": prompts}
    return {
        "energy_per_token_j": centre(rounds),
        **{f"energy_{name}": float(np.mean(values)) if values else None for name, values in means.items()},
    }


def _a_generation(windows: Sequence[Raw]) -> tuple[float, float]:
    """Joules and seconds of one, from the totals of the windows."""
    joules, seconds, generations = (
        sum(one[field] for one in windows) for field in ("energy_j", "seconds", "generations")
    )
    return joules / generations, seconds / generations


def _limits_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """Floor, MBU and prefill MFU from their definitions: one of each from every process, and their geometric mean."""
    found: dict[str, list[float]] = {"floor_s": [], "mbu": [], "prefill_mfu": []}
    for record in records:
        cell, limits = _cell(record, shape), record.get("limits")
        demand = cell.get("demand") if cell and cell["samples"] else None
        if cell is None or not limits or not demand:
            continue
        read = demand["weight_bytes"] + demand["kv_bytes"]
        bandwidth = max(limits["read_bytes_per_s"], limits["copy_bytes_per_s"])
        rate = limits["matmul_flops_per_s"]
        found["floor_s"].append(max(read / bandwidth, demand["decode_flops"] / rate))
        tpots = [one["tpot_s"] for one in cell["samples"] if one["tpot_s"] is not None]
        ttfts = [one["ttft_s"] for one in cell["samples"] if one["ttft_s"] is not None]
        if tpots:
            found["mbu"].append(read / bandwidth / float(np.median(tpots)))
        if ttfts:
            found["prefill_mfu"].append(demand["prefill_flops"] / rate / float(np.median(ttfts)))
    return {name: float(np.exp(np.mean(np.log(values)))) if values else None for name, values in found.items()}


def spreads_of(records: Sequence[Raw], shape: Sequence[int]) -> Numbers:
    """The interval and the deviation beside each time and rate, None where there is none."""
    tokens = shape[0] * shape[2]
    found: Numbers = {}
    for field in ("latency_s", "ttft_s", "tpot_s"):
        by_round = list(times_by_round(records, shape, field).values())
        repeats = [one[field] for record in records for one in _samples(record, shape) if one[field] is not None]
        found |= spread(field, by_round, repeats)
        if field == "latency_s":
            rates = [tokens / latency_s for latency_s in by_round]
            found |= spread("tokens_per_s", rates, [tokens / latency_s for latency_s in repeats])
    return found


def _round(record: Raw) -> Round:
    return record.get("sweep") or "", record["round"]


def _cell(record: Raw, shape: Sequence[int]) -> Raw | None:
    """The measured cell of that shape."""
    batch_size, prompt_tokens, new_tokens, which, depth = shape
    same = [
        cell
        for cell in record["cells"]
        if (cell["batch_size"], cell["prompt_tokens"], cell["new_tokens"]) == (batch_size, prompt_tokens, new_tokens)
        and cell.get("depth", 0) == depth
    ]
    told = [cell.get("text") for cell in same]
    numbers = [at if text is None else text for at, text in enumerate(told)]
    return next((cell for at, cell in zip(numbers, same, strict=True) if at == which and cell["status"] == "ok"), None)


def _samples(record: Raw, shape: Sequence[int]) -> list[Raw]:
    cell = _cell(record, shape)
    return list(cell["samples"]) if cell else []


def _peak(cell: Raw) -> float | None:
    """From the repeats where they say. An engine in a process of its own says one number on a GPU, the driver's; on a
    CPU the cell has the growth since before the load."""
    peaks = [one["peak_allocated_bytes"] for one in cell["samples"] if one["peak_allocated_bytes"] is not None]
    memory = cell["memory"]
    if peaks:
        return float(max(peaks) + (memory.get("graph_pool_bytes") or 0))
    of_driver, growth = memory.get("peak_allocated_bytes"), memory.get("resident_growth_bytes")
    return of_driver if of_driver is not None else growth
