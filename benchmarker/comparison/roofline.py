"""Roofline floor of a call: its least time at the bandwidth and the matmul rate that the same process measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarker.schema.record import Demand, Limits


@dataclass(frozen=True)
class Floor:
    seconds: float
    by: Literal["bytes", "flops"]
    fewer: float = 0.0  # Fraction of the floor that the same work can save, such as by fewer bits per weight.


def floor_of(demand: Demand | None, limits: Limits | None) -> Floor | None:
    if demand is None or limits is None or not (demand.bytes or demand.flops):
        return None
    moving_s = (demand.bytes or 0) / limits.bytes_per_s
    computing_s = (demand.flops or 0) / limits.matmul_flops_per_s
    return Floor(max(moving_s, computing_s), "bytes" if moving_s >= computing_s else "flops")
