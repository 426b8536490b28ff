"""Recompute the numbers of serving from the raw JSON of records, without the code of the workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarker.comparison.recompute import centre, spread
from tests.oracles.attention import Numbers, Raw, Round

Loads = dict[Round, Raw]
"""One load of a cell by the round in which it was measured."""
LIMITS_S = {"ttft": 0.5, "tpot": 0.03}
"""Limits of `procedure.slo` in the reference records."""
LEAST = {50: 1, 90: 20, 99: 200}
"""Least number of requests of each percentile."""


def numbers_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return the numbers of a row except its speed-up.

    Args:
        shape: Prompt tokens, new tokens, requests at once and requests per second.
    """
    loads = loads_of(records, shape)
    good = {number: _good(load) for number, load in loads.items()}
    numbers: Numbers = {
        "output_tokens_per_s": _centre(loads, _output_rate),
        "user_tokens_per_s": _centre(loads, lambda load: 1 / float(np.median(_tpots(load)))),
        "request_throughput_per_s": _centre(loads, lambda load: len(load["errors"]) / _seconds(load)),
        "goodput_per_s": centre({number: good[number] / _seconds(load) for number, load in loads.items()}),
        "joules_per_token": _centre(loads, lambda load: load["energy_j"] / sum(load["output_tokens"])),
        "requests": sum(len(load["errors"]) for load in loads.values()),
        "good_requests": sum(good.values()),
        "failed_requests": sum(error is not None for load in loads.values() for error in load["errors"]),
        "preemptions": sum(load["counters"]["preemptions"] for load in loads.values()),
        "start_s": float(np.median([record["server"]["start_s"] for record in records])),
        "rounds": len(loads),
        "runs": len(loads),
    }
    columns: dict[str, Callable[[Raw], Any]] = {
        "ttft": lambda load: np.array(load["ttft_s"]),
        "tpot": _tpots,
        "e2el": lambda load: np.array(load["request_s"]),
        "itl": lambda load: np.repeat(np.array(load["itl_steps"]) * 1e-4, load["itl_counts"]),
    }
    for name, column in columns.items():
        for percent, least in LEAST.items():
            field = f"{name}_s" if percent == 50 else f"{name}_p{percent}_s"
            enough = all(len(load["errors"]) >= least for load in loads.values())
            values = {number: float(np.percentile(column(load), percent)) for number, load in loads.items()}
            numbers[field] = centre(values) if enough else None
    return numbers


def spreads_of(records: Sequence[Raw], shape: Sequence[Any]) -> Numbers:
    """Return intervals of the output rate, TTFT and TPOT. Loads are not repeated within a process."""
    loads = loads_of(records, shape).values()
    values = {
        "output_tokens": [_output_rate(load) for load in loads],
        "ttft_s": [float(np.median(load["ttft_s"])) for load in loads],
        "tpot_s": [float(np.median(_tpots(load))) for load in loads],
    }
    spreads = {name: spread(name, rounds, rounds) for name, rounds in values.items()}
    return {name: value for part in spreads.values() for name, value in part.items() if "deviation" not in name}


def loads_of(records: Sequence[Raw], shape: Sequence[Any]) -> Loads:
    axes = ("prompt_tokens", "new_tokens", "concurrency", "rate")
    return {
        (record["sweep"] or "", record["round"]): cell["samples"][0]
        for record in sorted(records, key=lambda record: int(record["round"]))
        for cell in record["cells"]
        if [cell[axis] for axis in axes] == list(shape) and cell["status"] == "ok"
    }


def _centre(loads: Loads, of: Callable[[Raw], float]) -> float | None:
    return centre({number: of(load) for number, load in loads.items()})


def _seconds(load: Raw) -> float:
    """Return the time from the first start to the last end."""
    starts = np.array(load["start_s"])
    return float((starts + np.array(load["request_s"])).max() - starts.min())


def _output_rate(load: Raw) -> float:
    return float(sum(load["output_tokens"]) / _seconds(load))


def _tpots(load: Raw) -> Any:
    return (np.array(load["request_s"]) - np.array(load["ttft_s"])) / (np.array(load["output_tokens"]) - 1)


def _good(load: Raw) -> int:
    is_good = (np.array(load["ttft_s"]) <= LIMITS_S["ttft"]) & (_tpots(load) <= LIMITS_S["tpot"])
    return int(is_good.sum())
