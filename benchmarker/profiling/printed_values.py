"""What a profiler's table holds, and which of its rows may be added up.

A table of torch.profiler shows the same device time several times over. A *kernel* row is the time itself. An
*operator* row repeats, as its own device time, that of the kernels which it launched. A *span* row is a user annotation
on the device: the time from its first kernel to its last, idle gaps included, so that it can come to 167 % of all
kernel time. Kernels add up, and operators add up; the two together, or a span with anything, do not.

A table is mostly cut after some rows. How much it leaves out is known, from the total below it; what it is, is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchmarker.profiling.categories import category

Kind = Literal["kernel", "operator", "span", "overhead", "unclear"]
"""`overhead` is a driver call or the profiler's own work; `unclear` may be kernel or span, and counts as neither."""

# Times are printed with four digits or so.
ROUNDING = 0.005
_OPERATOR = re.compile(r"\w+::|\w+Backward\d*$")


@dataclass(frozen=True)
class TableRow:
    """One row. None is what the table has no column for."""

    name: str
    """As printed: torch cuts long names and ends them in `...`, so that different kernels can bear one name."""
    kind: Kind
    calls: int
    self_cpu_s: float | None
    cpu_total_s: float | None
    self_device_s: float | None
    device_total_s: float | None
    """With everything that it called."""
    device_memory_bytes: int | None = None
    """Allocated less freed, with everything that it called."""
    self_device_memory_bytes: int | None = None
    flops: float | None = None
    """As torch's formulas have it, which know few operators; None for all others."""


@dataclass(frozen=True)
class ProfilerTable:
    """One table of a text."""

    line: int
    """Of its first line in the text, from 1."""
    rank: int | None
    """Process that printed it, where its lines begin with a number of one."""
    device: str | None
    """As the columns call it: `CUDA` also on ROCm, `XPU`. None where nothing but the CPU was profiled."""
    rows: tuple[TableRow, ...]
    """In their printed order."""
    cpu_s: float | None
    """`Self CPU time total`, below the table."""
    device_s: float | None
    """`Self CUDA time total`, below the table: all kernels, listed or not."""
    text: str
    """The table itself with its totals, without what stood before each line."""
    is_total_printed: bool = True
    """False where the line of the total is missing, and it is worked out from a row's percentage or not known."""
    is_whole: bool = True
    """False where the text ends, or goes on with something else, before the rule below the rows."""
    title: str | None = None
    """The nearest line above it, where people write what was profiled."""

    @property
    def by(self) -> Literal["device", "cpu"]:
        """Whose time it is of: a processor's where it has no column of a device."""
        return "device" if self.device else "cpu"

    def own_s(self, row: TableRow) -> float:
        """A row's own time there."""
        return (row.self_device_s if self.device else row.self_cpu_s) or 0.0

    @property
    def known_total_s(self) -> float | None:
        """Time of all kernels, or of all operators on a processor, as far as it is known."""
        if self.device or self.cpu_s is None:
            return self.device_s
        # On a processor the total has the annotations' own time in it, which is what ran between operators.
        return self.cpu_s - sum(map(self.own_s, self.rows)) + self.listed_s

    @property
    def total_s(self) -> float:
        """The same, and the sum of the rows where that is more or all that is known."""
        return max(self.listed_s, self.known_total_s or 0.0)

    @property
    def is_total_too_small(self) -> bool:
        """Whether the rows add up to more than the total, which then is not theirs."""
        return self.known_total_s is not None and self.listed_s > self.known_total_s * (1 + ROUNDING)

    @property
    def kernels(self) -> tuple[TableRow, ...]:
        return self._of("kernel")

    @property
    def operators(self) -> tuple[TableRow, ...]:
        """Those with device time of their own."""
        return self._of("operator")

    @property
    def spans(self) -> tuple[TableRow, ...]:
        return self._of("span")

    @property
    def listed(self) -> tuple[TableRow, ...]:
        """Kernels or operators, whichever account for more of the total: these rows add up.

        Operators do where the kernels of one are too short each for a row. Kernels are preferred, being what ran.
        On a processor they are the operators.
        """
        if self.by == "cpu":
            return tuple(row for row in self.rows if row.self_cpu_s and _is_of_an_operator(row))
        by_kernel, by_operator = _device_s(self.kernels), _device_s(self.operators)
        is_sound = self.device_s is None or by_operator <= self.device_s * (1 + ROUNDING)
        return self.operators if is_sound and by_operator > by_kernel * (1 + ROUNDING) else self.kernels

    @property
    def listed_s(self) -> float:
        return sum(map(self.own_s, self.listed))

    @property
    def not_listed_share(self) -> float | None:
        """Part of all kernel time that no row accounts for. None where the total is missing, or less than the rows."""
        total_s = self.known_total_s
        return max(0.0, 1 - self.listed_s / total_s) if total_s and not self.is_total_too_small else None

    def _of(self, kind: Kind) -> tuple[TableRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind and row.self_device_s)


def _is_of_an_operator(row: TableRow) -> bool:
    """Whether a row with time on the processor is of an operator, and not an annotation around several."""
    return row.kind == "operator" and (_OPERATOR.match(row.name) is not None or category(row.name) != "other")


def _device_s(rows: Iterable[TableRow]) -> float:
    return sum(row.self_device_s or 0.0 for row in rows)
