"""All that a verdict on one variant rests on."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarker.explain.values import Conversion, Phase, Waterfall
from benchmarker.profiling.categories import Category
from benchmarker.schema.roofline import Limits
from benchmarker.workloads.generation.record import GenerationDemand

PRODUCTS: tuple[Category, ...] = ("matmul", "quantized matmul")
PRODUCTS_FROM = 0.50
"""Matrix products that take less of the kernel time are one part among others."""
SLOW_BELOW = 0.60
"""Products that read the weights at less of the bandwidth leave that much to a better kernel."""
UNCAPTURED = frozenset({"ExllamaV2Linear"})
"""Classes of layers that launch on the default stream; see engines/graph_capture.py."""


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
    linears: frozenset[str] = frozenset()
    """Classes of the linear layers."""
    conversion: Conversion | None = None
    demand: GenerationDemand | None = None
    limits: Limits | None = None
    mbu: float | None = None
    """Share of the bandwidth that was used, over all processes; None where it or the bytes were not measured."""

    @property
    def can_be_captured(self) -> bool:
        """Whether a graph runtime can take this variant: some kernels run on a stream that no graph holds."""
        return not self.linears & UNCAPTURED

    @property
    def compute_share(self) -> float | None:
        """Share of the matmul rate that was used; None where it or the operations were not measured."""
        if self.demand is None or self.limits is None:
            return None
        return self.demand.decode_flops / (self.waterfall.total_s * self.limits.matmul_flops_per_s)

    @property
    def slow_products(self) -> float | None:
        """Share of the bandwidth at which the matrix products read the weights, where they are most of the kernel time
        and that is little. None where it is not so, or not known."""
        if self.demand is None or self.limits is None:
            return None
        products_s = sum(self.phase.categories.get(one, 0.0) for one in PRODUCTS)
        if products_s < PRODUCTS_FROM * self.phase.kernel_s or not products_s:
            return None
        reached = self.demand.weight_bytes / (products_s * self.limits.bytes_per_s)
        return reached if reached < SLOW_BELOW else None
