"""Rows of token mixers, with what tells a softmax from the others, and what did not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarker.comparison.aggregate import by_round
from benchmarker.comparison.rows import Row
from benchmarker.workloads.mixers.record import MixersCell, MixersRecord, TaskScore
from benchmarker.workloads.operation.spec import LengthPoint

if TYPE_CHECKING:
    from benchmarker.schema.record import Moment

OUT_OF_MEMORY = ("oom_gpu", "oom_host")


@dataclass(frozen=True)
class MixersRow(Row):
    """One variant in one cell."""

    misfits: dict[LengthPoint, MixersCell] = field(default_factory=dict)
    """Cells of the variant that ran out of memory."""
    kernels_by_round: dict[Moment, float] = field(default_factory=dict)
    """Seconds of all kernels of one profiled call, by round. Empty on a processor, and for a model's training step,
    whose record has the kernels of its mixer alone."""
    tasks: tuple[TaskScore, ...] = ()
    """Every task in every size and seed."""
    mixer_share: float | None = None
    """Of the arithmetic of a training step: what a mixer that costs nothing would save."""

    @property
    def is_softmax(self) -> bool:
        return self.form["mixer"] == "softmax"

    @property
    def misfit(self) -> MixersCell | None:
        """This row's cell where it ran out of memory, with what it needed and what was free."""
        if self.cell is None or self.status not in OUT_OF_MEMORY:
            return None
        return self.misfits.get(LengthPoint(self.cell.seq_len, self.cell.batch_size, self.cell.mode))

    @property
    def tokens(self) -> int:
        """Of the whole batch."""
        return self.cell.seq_len * self.cell.batch_size if self.cell else 0


def row_fields(records: Sequence[MixersRecord], good: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """What a row of mixers has beyond those of every workload."""
    newest = sorted(records, key=lambda record: record.started_at, reverse=True)
    demand = good[0][1].demand if good else None
    return {
        "kernels_by_round": by_round(good, lambda cell, _: _kernels_s(cell)) if _has_kernels(good) else {},
        "tasks": next((record.tasks for record in newest if record.tasks), ()),
        "mixer_share": demand.mixer_flops / demand.flops if demand and demand.mixer_flops else None,
        "misfits": {
            LengthPoint(cell.seq_len, cell.batch_size, cell.mode): cell
            for record in records
            for cell in record.cells
            if cell.status in OUT_OF_MEMORY and cell.least_bytes is not None
        },
    }


def _has_kernels(good: Sequence[tuple[Any, Any]]) -> bool:
    """Whether kernels were recorded, and are those of the call that was timed."""
    return all(record.environment.device.kind != "cpu" and not cell.block and cell.kernels for record, cell in good)


def _kernels_s(cell: Any) -> float:
    return float(sum(kernel.total_s for kernel in cell.kernels))
