"""Rows of mixers, and the explanation of one call.

    floor = max(FLOPs / matmul rate, bytes of inputs and outputs / bandwidth)

A training step is not explained, since the kernels of its record are those of its mixer alone; nor is a call on a CPU,
where the operators of a mixer cannot be identified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from benchmarker.comparison.aggregate import by_round
from benchmarker.comparison.rows import Row
from benchmarker.explain.case import Timed
from benchmarker.explain.reasons import floor_of
from benchmarker.explain.values import NotExplained
from benchmarker.profiling.categories import seconds_by_category
from benchmarker.workloads.mixers.mixer import SOFTMAX
from benchmarker.workloads.mixers.record import MixersCell, MixersRecord, TaskScore
from benchmarker.workloads.operation.reading.explained_call import (
    kernels_note,
    largest_call,
    phase_of_call,
    timed_call,
)
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
    """Seconds of all kernels of one profiled call, by round. Empty on a CPU, and for a training step, whose record has
    only the kernels of its mixer."""
    tasks: tuple[TaskScore, ...] = ()
    """Every task in every size and seed."""
    mixer_share: float | None = None
    """Share of the mixers in the FLOPs of a training step, which bounds the savings of another mixer."""

    @property
    def is_softmax(self) -> bool:
        return self.form["mixer"] == SOFTMAX.name

    @property
    def misfit(self) -> MixersCell | None:
        """Cell of this row if it ran out of memory."""
        if self.cell is None or self.status not in OUT_OF_MEMORY:
            return None
        return self.misfits.get(LengthPoint(self.cell.seq_len, self.cell.batch_size, self.cell.mode))

    @property
    def tokens(self) -> int:
        """Tokens of the whole batch."""
        return self.cell.seq_len * self.cell.batch_size if self.cell else 0


def make_mixers_row(
    fields: dict[str, Any], records: Sequence[MixersRecord], good: Sequence[tuple[Any, Any]]
) -> MixersRow:
    """Return a row with the fields that only mixers have."""
    newest = sorted(records, key=lambda record: record.started_at, reverse=True)
    demand = good[0][1].demand if good else None
    has_kernels = all(
        record.environment.device.kind != "cpu" and not cell.block and cell.kernels for record, cell in good
    )
    return MixersRow(
        **fields,
        kernels_by_round=by_round(good, lambda cell, _: _kernels_s(cast("MixersCell", cell))) if has_kernels else {},
        tasks=next((record.tasks for record in newest if record.tasks), ()),
        mixer_share=demand.mixer_flops / demand.flops if demand and demand.mixer_flops else None,
        misfits={
            LengthPoint(cell.seq_len, cell.batch_size, cell.mode): cell
            for record in records
            for cell in record.cells
            if cell.status in OUT_OF_MEMORY and cell.least_bytes is not None
        },
    )


def _kernels_s(cell: MixersCell) -> float:
    return float(sum(kernel.total_s for kernel in cell.kernels))


def timed_mixer(name: str, records: Sequence[MixersRecord], *, form: Mapping[str, str]) -> Timed | NotExplained:
    """Return the largest measured call of the mixer alone, with the kernels of its proof."""
    call = largest_call(name, records, explains=lambda cell: cell.block is None)
    if call is None:
        return NotExplained(name, "no cell of the mixer alone was measured")
    if call.on_cpu:
        return NotExplained(name, "on a CPU the operators of a mixer cannot be identified")
    categories = seconds_by_category((kernel.name, kernel.total_s) for kernel in call.cell.kernels)
    return timed_call(
        call,
        phase_of_call(call, categories),
        floor=floor_of(call.cell.demand, call.record.limits),
        form=form,
        notes=kernels_note(call.cell.kernels),
    )
