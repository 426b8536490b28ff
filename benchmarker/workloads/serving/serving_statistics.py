"""Statistics of requests, with the definitions of `vllm bench serve`.

    E2EL    time from the start of a request to its last token
    TTFT    time from the start of a request to its first token
    TPOT    (E2EL - TTFT) / (output tokens - 1), one number for each request
    ITL     time between two consecutive tokens, one number for each pair
    good    a request that ended with all its tokens, within every limit of the SLO
    goodput good requests per second

Percentiles interpolate linearly between order statistics. The functions take a `Load` or its JSON.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from benchmarker.core.formatting import percent
from benchmarker.core.stats import wilson
from benchmarker.workloads.serving.slo import Slo

GOOD_SHARE = 0.90
"""Share of good requests that a load must exceed."""
BEYOND = 2
"""Minimum number of requests beyond a percentile: a p99 needs 200 requests, a p90 20."""
ITL_STEP_S = 1e-4
"""Width of the classes in which inter-token latencies are counted, s."""
MOST_MERGED = 0.5
"""Share of merged tokens above which TTFT and TPOT are not the times of tokens."""
LARGEST_BACKLOG = 0.2
"""Share of the requests of an open loop that may be unfinished when the last request arrives."""


def tpots_s(load: Any) -> list[float | None]:
    """Return the TPOT of each request. None for a failed request, and for fewer than two tokens."""
    return [
        (request_s - ttft_s) / (tokens - 1) if ttft_s is not None and tokens > 1 and error is None else None
        for ttft_s, request_s, tokens, error in zip(
            load.ttft_s, load.request_s, load.output_tokens, load.errors, strict=True
        )
    ]


def values_s(load: Any, name: str) -> list[float]:
    """Return the metric `name` (ttft, tpot or e2el) of each request that did not fail and has one."""
    if name == "tpot":
        return [tpot_s for tpot_s in tpots_s(load) if tpot_s is not None]
    values = load.ttft_s if name == "ttft" else load.request_s
    return [value for value, error in zip(values, load.errors, strict=True) if error is None and value is not None]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which this share of the values lies; None if too few values lie beyond it."""
    return float(np.percentile(values, 100 * share)) if _are_enough(len(values), share) else None


def _are_enough(count: int, share: float) -> bool:
    return count >= (1 if share == 0.5 else round(BEYOND / (1 - share)))


def itl_percentile_s(load: Any, share: float) -> float | None:
    """Return a percentile of all inter-token latencies; None if the load has too few requests."""
    if not load.itl_counts or not _are_enough(len(values_s(load, "ttft")), share):
        return None
    ends = list(accumulate(load.itl_counts))
    place = share * (ends[-1] - 1)
    low, high = (
        next(step for step, end in zip(load.itl_steps, ends, strict=True) if end > rank)
        for rank in (math.floor(place), min(math.floor(place) + 1, ends[-1] - 1))
    )
    return float(ITL_STEP_S * (low + (place - math.floor(place)) * (high - low)))


def merged_share(load: Any) -> float:
    """Return the share of tokens, first tokens of requests excluded, that arrived together with the previous token."""
    later = sum(max(0, tokens - 1) for tokens in load.output_tokens)
    apart = sum(count for step, count in zip(load.itl_steps, load.itl_counts, strict=True) if step)
    return max(0, later - apart) / later if later and load.itl_counts else 0.0


def _ends_s(load: Any) -> list[float]:
    return [start_s + request_s for start_s, request_s in zip(load.start_s, load.request_s, strict=True)]


def load_s(load: Any) -> float:
    """Return the seconds from the start of the first request to the end of the last request."""
    first_s: float = min(load.start_s)
    return max(_ends_s(load)) - first_s


def backlog(load: Any) -> float:
    """Return the share of the requests that had not ended when the last request started."""
    last_s, ends_s = float(max(load.start_s)), _ends_s(load)
    return sum(end_s > last_s for end_s in ends_s) / len(ends_s)


def output_tokens_per_s(load: Any) -> float | None:
    return sum(load.output_tokens) / load_s(load) or None


def joules_per_token(load: Any) -> float | None:
    tokens = sum(load.output_tokens)
    return load.energy_j / tokens if load.energy_j and tokens else None


def user_tokens_per_s(load: Any) -> float | None:
    """Return the tokens per second that the median request receives: 1 / TPOT."""
    tpots = values_s(load, "tpot")
    return 1 / statistics.median(tpots) if tpots and statistics.median(tpots) else None


def requests_per_s(load: Any) -> float | None:
    return load.errors.count(None) / load_s(load) or None


def failed(load: Any) -> int:
    return len(load.errors) - int(load.errors.count(None))


def requested_tokens(load: Any, new_tokens: int) -> Sequence[int]:
    """Return the requested tokens of each request; `new_tokens` are those of the cell."""
    return load.requested_tokens or [new_tokens] * len(load.errors)


def truncated(load: Any, new_tokens: int) -> int:
    """Return the number of requests that ended without an error and with fewer tokens than requested."""
    columns = zip(load.errors, load.output_tokens, requested_tokens(load, new_tokens), strict=True)
    return sum(error is None and tokens < requested for error, tokens, requested in columns)


def problem_of(load: Any, new_tokens: int) -> str | None:
    """Return why the load has no speed: failed requests, truncated requests, or merged tokens. None if it has one."""
    requests = len(load.errors)
    if number := failed(load):
        first = next(error for error in load.errors if error is not None)
        return f"{number} of {requests} requests failed: {first}"
    if number := truncated(load, new_tokens):
        return f"{number} of {requests} requests ended with fewer tokens than requested"
    if (share := merged_share(load)) > MOST_MERGED:
        return f"{percent(share)} of the tokens arrived together with the token before: processor cores were lacking"
    return None


def good(load: Any, new_tokens: int, slo: Slo) -> int:
    """Return the number of good requests. A request at a limit is good, as in vLLM."""
    columns = {"ttft": load.ttft_s, "tpot": tpots_s(load), "e2el": load.request_s}
    requested = requested_tokens(load, new_tokens)
    limited = [(columns[name], limit_s) for name, limit_s in slo.limits_s]
    return sum(
        load.errors[place] is None
        and load.output_tokens[place] >= requested[place]
        and all(column[place] is not None and column[place] <= limit_s for column, limit_s in limited)
        for place in range(len(load.errors))
    )


SloVerdict = Literal["passes", "fails", "undecided"]


@dataclass(frozen=True)
class Attainment:
    """Good requests among all, with the 95 % Wilson interval of their share."""

    good: int
    requests: int

    @property
    def interval(self) -> tuple[float, float, float]:
        return wilson(self.good, self.requests)

    @property
    def verdict(self) -> SloVerdict:
        """Return `passes` if the interval lies above 90 %, `fails` if below, else `undecided`."""
        _, low, high = self.interval
        return "passes" if low > GOOD_SHARE else "fails" if high < GOOD_SHARE else "undecided"

    @property
    def text(self) -> str:
        """Return the share with its interval, as `41 % [34, 48]`."""
        share, low, high = (f"{100 * part:.0f}" for part in self.interval)
        return f"{share} % [{low}, {high}]"


def attained(loads: Sequence[tuple[Any, int]], slo: Slo) -> Attainment | None:
    """Return the good requests among all. `loads`: pairs of load and its cell's new_tokens. None without a load."""
    requests = sum(len(load.errors) for load, _ in loads)
    return Attainment(sum(good(load, new_tokens, slo) for load, new_tokens in loads), requests) if loads else None
