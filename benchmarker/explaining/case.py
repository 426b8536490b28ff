"""All that a verdict on one variant rests on."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.explaining.values import Conversion, Phase, Waterfall
from benchmarker.roofline import Demand, Limits, mbu


@dataclass(frozen=True)
class Case:
    """All that a verdict rests on."""

    quant: str
    runtime: str
    batch_size: int
    device: str | None
    """cuda, rocm or cpu; None where a log does not say."""
    phase: Phase
    waterfall: Waterfall
    conversion: Conversion | None = None
    demand: Demand | None = None
    limits: Limits | None = None

    @property
    def mbu(self) -> float | None:
        """Share of the bandwidth; None where it or the bytes were not measured."""
        if self.demand is None or self.limits is None:
            return None
        return mbu(self.demand, self.limits, tpot_s=self.waterfall.total_s)

    @property
    def compute_share(self) -> float | None:
        """Share of the matmul rate; None as above."""
        if self.demand is None or self.limits is None:
            return None
        return self.demand.decode_flops / (self.waterfall.total_s * self.limits.matmul_flops_per_s)
