"""Service level objective of a serving measurement: `--slo "ttft<500ms, tpot<30ms"`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarker.core.errors import did_you_mean

DEFAULT_SLO = "ttft<500ms, tpot<30ms"
"""Limits of llama3.1-8b, interactive, in MLPerf Inference (`loadgen/mlperf.conf`)."""
UNITS = {"ms": 1e-3, "s": 1.0}
LIMIT = re.compile(r"(\w+)\s*<=?\s*([0-9.]+)\s*(\w*)")
LIMITED = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Slo:
    """Service level objective: limits that each request must meet, in seconds by the metric's name."""

    limits_s: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}<{1e3 * limit_s:g}ms" if limit_s < 1 else f"{name}<{limit_s:g}s" for name, limit_s in self.limits_s
        )

    @property
    def words(self) -> str:
        """Return `TTFT 500 ms and TPOT 30 ms`."""
        limits = [f"{name.upper()} {1e3 * limit_s:g} ms" for name, limit_s in self.limits_s]
        return " and ".join(filter(None, (", ".join(limits[:-1]), limits[-1])))


def parse_slo(text: str) -> Slo:
    """Return the limits of `ttft<500ms, tpot<30ms`; raises ValueError."""
    limits: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = LIMIT.fullmatch(part)
        if match is None or match[2].count(".") > 1 or not match[2].strip("."):
            raise ValueError(f"'{part}' is no limit; write {DEFAULT_SLO}")
        name, number, unit = match[1].lower(), float(match[2]), match[3].lower()
        if name not in LIMITED:
            raise ValueError(f"no metric '{match[1]}' of a request{did_you_mean(name, LIMITED)}")
        if unit not in UNITS:
            raise ValueError(f"'{part}' needs a unit, ms or s; write {name}<{match[2]}ms")
        if name in limits:
            raise ValueError(f"two limits of {name}; give one of them")
        if number == 0:
            raise ValueError(f"'{part}': no request meets a limit of 0")
        limits[name] = number * UNITS[unit]
    if not limits:
        raise ValueError(f"no limit is given; write {DEFAULT_SLO}")
    return Slo(tuple(sorted(limits.items(), key=lambda item: LIMITED.index(item[0]))))
