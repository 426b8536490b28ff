"""How records of context parallel attention are compared: what must be equal, and the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchmarker.comparison.comparing import Comparing
from benchmarker.workloads.context_parallel.record import ContextParallelRecord

if TYPE_CHECKING:
    from benchmarker.comparison.invariants import Check

PLAIN = "single"


def form(record: ContextParallelRecord) -> dict[str, str]:
    """The way to split, and the kernel of each block."""
    return {"split": record.variant.variant, "kernel": record.variant.kernel}


def layer(record: ContextParallelRecord) -> str:
    """The layer's shapes and type."""
    values = record.subject.model_dump(mode="json", exclude_none=True)
    return ", ".join(f"{name} {value}" for name, value in values.items())


def exchange(record: ContextParallelRecord) -> str | None:
    """`nccl 2.28.9`, `gloo`."""
    return f"{record.built.backend} {record.built.collectives or ''}".strip() if record.built else None


def checks(record: ContextParallelRecord) -> Iterable[Check]:
    """The slowest rank's time counts; what was handed over is what the formula says."""
    from benchmarker.comparison.invariants import equal

    for number, cell in enumerate(record.cells):
        place = f"cell {number}"
        if cell.sent_bytes is not None and cell.demand:
            yield equal(place, "sent_bytes", cell.sent_bytes, cell.demand.sent_bytes)
        for sample in (*cell.warmup, *cell.samples):
            yield equal(place, "latency_s", sample.latency_s, max(sample.ranks_s, default=sample.latency_s))


COMPARING = Comparing(
    form=form,
    family=lambda record: record.variant.variant,
    plainness=lambda record: (record.variant.variant == PLAIN,),
    circumstances={
        "layer": layer,
        "exchange": exchange,
    },
    must_be_equal=("layer",),
    subject=("subject",),
    checks=checks,
)
