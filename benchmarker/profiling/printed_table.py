"""Values of a printed profiler table, and which of its rows add up.

torch prints the same device time in several rows. A *kernel* row has the time of a kernel. An *operator* row has, as
its own device time, the time of the kernels that it launched. A *span* row is a user annotation on the device: the time
from its first kernel to its last, idle gaps included. So either all kernels or all operators add up to the total, and
spans never count. Most tables are cut after some rows: the total below the table includes the missing rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarker.profiling.kernel_categories import category

Kind = Literal["kernel", "operator", "span", "overhead", "unclear"]
"""`overhead` is a driver call or work of the profiler; `unclear` may be kernel or span, and counts as neither."""

ROUNDING = 0.005  # Relative tolerance, since times are printed with four digits.
WORTH_OPERATORS = 0.03
"""Share of the total by which categorized operators must exceed categorized kernels to be listed instead."""
COVERING = 0.8  # Minimum share of the host's time for an annotation over the whole run.
FILLED = 0.9  # Share of the total from which kernels and unclear rows together count as all kernels.


@dataclass(frozen=True)
class TableRow:
    """Row of a printed table; None for columns that the table lacks."""

    name: str
    """Printed name: torch cuts long names and ends them in `...`, so that several kernels can have the same name."""
    kind: Kind
    calls: int
    self_cpu_s: float | None = None
    cpu_total_s: float | None = None
    self_device_s: float | None = None
    device_total_s: float | None = None  # Device time of the row and of everything that it called.
    device_memory_bytes: int | None = None  # Allocated less freed bytes, including those of everything that it called.
    self_device_memory_bytes: int | None = None

    @property
    def has_cpu_time(self) -> bool:
        return bool(self.self_cpu_s or self.cpu_total_s)

    @property
    def has_cpu_column(self) -> bool:
        return self.self_cpu_s is not None or self.cpu_total_s is not None


@dataclass(frozen=True)
class ProfilerTable:
    """Profiler table: one table in a text, or the kernels of one device in a trace."""

    line: int  # Number of its first line in the text, from 1; 0 for a trace.
    rows: tuple[TableRow, ...]  # In printed order, without rows of negative own time.
    text: str  # The table with its totals, without the prefix of each line.
    rank: int | None = None
    device: str | None = None  # Name in the columns: `CUDA` also on ROCm, `XPU`. None if only the CPU was profiled.
    cpu_s: float | None = None  # `Self CPU time total` below the table.
    device_s: float | None = None  # Time of all kernels, listed or not: `Self CUDA time total` without annotations.
    is_total_printed: bool = True  # False if the total follows from the percentage of a row, or is unknown.
    is_whole: bool = True  # False if the line of dashes below the rows is missing.
    title: str | None = None  # Nearest line above the table.
    process: str | None = None  # Process or host that printed it, by the prefix of its lines: `EngineCore_7`, `rank 3`.
    annotations_s: float = 0.0  # Device time of annotations that torch before 2.5 added to the printed total.
    negative_rows: tuple[str, ...] = ()  # Names of rows that are left out because their own time is negative.
    foreign_lines: tuple[int, ...] = ()  # Numbers of lines between the rows that are no rows.
    span_s: float | None = None  # Seconds from the first kernel to the last; None if nothing shows it.
    busy_s: float | None = None  # Seconds in which at least one kernel ran, of a trace; None for a printed table.

    @property
    def by(self) -> Literal["device", "cpu"]:
        return "device" if self.device else "cpu"

    def own_s(self, row: TableRow) -> float:
        return (row.self_device_s if self.device else row.self_cpu_s) or 0.0

    @property
    def known_total_s(self) -> float | None:
        """Time of all kernels, or of all operators on a CPU; None if unknown."""
        if self.device or self.cpu_s is None:
            return self.device_s
        return self.cpu_s - self.outside_s

    @property
    def outside_s(self) -> float:
        """Own time of annotations on a CPU: the time between operators, which the printed total contains."""
        if self.device:
            return 0.0
        listed = set(self.listed)
        return sum(self.own_s(row) for row in self.rows if row not in listed)

    @property
    def total_s(self) -> float:
        """Time of all kernels; the sum of the rows if the sum is larger or the time is unknown."""
        return max(self.listed_s, self.known_total_s or 0.0)

    @property
    def is_total_too_small(self) -> bool:
        return self.known_total_s is not None and self.listed_s > self.known_total_s * (1 + ROUNDING)

    def of_kind(self, kind: Kind) -> tuple[TableRow, ...]:
        """Return the rows of a kind that have own device time."""
        return tuple(row for row in self.rows if row.kind == kind and row.self_device_s)

    @property
    def listed(self) -> tuple[TableRow, ...]:
        """Rows whose times add up: the kernels, or the operators if clearly more of their time has a category.

        Operators are listed if a cut table lacks their short kernels, or if kernel names have no category. An operator
        without a category is replaced by the kernel with equal time and calls.
        """
        if self.by == "cpu":
            # Annotations contain several operators.
            return tuple(
                row
                for row in self.rows
                if row.self_cpu_s
                and row.kind == "operator"
                and (_CPU_OPERATOR.match(row.name) or category(row.name) != "other")
                and not _ANNOTATION.match(row.name)
            )
        kernels, operators = self.of_kind("kernel"), tuple(map(self._by_kernel, self.of_kind("operator")))
        by_kernel, by_operator = _known_s(kernels), _known_s(operators)
        is_sound = self.device_s is None or _device_s(operators) <= self.device_s * (1 + ROUNDING)
        total_s = self.device_s or max(_device_s(kernels), _device_s(operators))
        is_worth = is_sound and by_operator - by_kernel > WORTH_OPERATORS * total_s
        return operators if is_worth or not kernels else kernels

    @property
    def listed_s(self) -> float:
        return sum(map(self.own_s, self.listed))

    @property
    def not_listed_share(self) -> float | None:
        """Share of the total kernel time that the listed rows lack; None if the total is unknown or too small."""
        total_s = self.known_total_s
        return max(0.0, 1 - self.listed_s / total_s) if total_s and not self.is_total_too_small else None

    def _by_kernel(self, operator: TableRow) -> TableRow:
        def is_same(row: TableRow) -> bool:
            return row.calls == operator.calls and _is_same(row.self_device_s, operator.self_device_s)

        own = [row for row in self.of_kind("kernel") if is_same(row)]
        is_clear = len(own) == 1 and sum(map(is_same, self.of_kind("operator"))) == 1
        return own[0] if is_clear and category(operator.name) == "other" else operator


def complete_table(table: ProfilerTable) -> ProfilerTable:
    negative = tuple(row.name for row in table.rows if table.own_s(row) < 0)
    rows = _with_kinds([row for row in table.rows if table.own_s(row) >= 0], table.device_s)
    whole = replace(table, rows=rows, negative_rows=table.negative_rows + negative)
    annotations_s = _annotations_in_total(whole)
    if annotations_s and whole.device_s:
        whole = replace(whole, device_s=whole.device_s - annotations_s, annotations_s=annotations_s)
    once = max((row.self_device_s or 0.0 for row in whole.of_kind("span") if row.calls == 1), default=0.0)
    return replace(whole, span_s=once if whole.device_s and once >= whole.total_s else whole.span_s)


def _annotations_in_total(table: ProfilerTable) -> float:
    """Return the device time of annotations if the printed total contains it, as before torch 2.5; else 0.

    The total contains that time if the remainder is the time of the kernels, the operators or the annotated calls, or
    if an annotation over the whole run is shorter than the total, since kernels alone cannot exceed it.
    """
    total_s, spans = table.device_s or 0.0, table.of_kind("span")
    spans_s = _device_s(spans)
    rest_s = total_s - spans_s
    if not spans_s or not table.is_total_printed or max(row.self_device_s or 0.0 for row in spans) > total_s:
        return 0.0
    names = {row.name for row in spans}
    hosts = [row for row in table.rows if row.name in names and row.kind != "span"]
    below = [row.device_total_s or 0.0 for row in hosts] or [0.0]
    listed = [_device_s(table.of_kind("kernel")), _device_s(table.of_kind("operator"))]
    if rest_s < max(*listed, *below, 0.0) * (1 - ROUNDING):
        return 0.0
    is_explained = any(abs(rest_s - sum_s) <= 4 * ROUNDING * total_s for sum_s in (*listed, sum(below), max(below)))
    over_all = {row.name for row in hosts if table.cpu_s and (row.cpu_total_s or 0.0) >= COVERING * table.cpu_s}
    over_all_s = [
        row.self_device_s or 0.0 for row in spans if row.name.startswith("ProfilerStep") or row.name in over_all
    ]
    is_too_short = bool(over_all_s) and max(over_all_s) < total_s * (1 - 4 * ROUNDING)
    return spans_s if is_explained or is_too_short else 0.0


def merged(tables: Sequence[ProfilerTable]) -> tuple[ProfilerTable, ...]:
    result: list[ProfilerTable] = []
    for table in tables:
        index = next((index for index, earlier in enumerate(result) if _is_same_profile(earlier, table)), None)
        if index is None:
            result.append(table)
        else:
            result[index] = _united(result[index], table)
    return tuple(result)


def _united(first: ProfilerTable, second: ProfilerTable) -> ProfilerTable:
    if second.is_total_printed and not first.is_total_printed:
        first, second = replace(second, line=first.line, title=first.title), first
    counts = Counter(map(_key, first.rows))
    more = []
    for row in second.rows:
        counts[_key(row)] -= 1
        more += [row] if counts[_key(row)] < 0 else []
    return complete_table(
        replace(
            first,
            rows=tuple(replace(row, kind="unclear") for row in (*first.rows, *more)),
            text=f"{first.text}\n{second.text}",
            device_s=first.device_s + first.annotations_s if first.device_s else None,
            annotations_s=0.0,
            negative_rows=tuple(dict.fromkeys(first.negative_rows + second.negative_rows)),
            foreign_lines=first.foreign_lines + second.foreign_lines,
        )
    )


def _key(row: TableRow) -> tuple[str, int, float | None, float | None]:
    return row.name, row.calls, row.self_cpu_s, row.self_device_s


def _is_same_profile(first: ProfilerTable, second: ProfilerTable) -> bool:
    """Return whether two tables print one profile: equal totals (or two shared rows), and no contradictory rows."""
    if (first.process, first.device) != (second.process, second.device):
        return False
    first_keys, second_keys = set(map(_key, first.rows)), set(map(_key, second.rows))
    shared = first_keys & second_keys
    keys = Counter(name for name, *_ in first_keys | second_keys)
    names = {row.name for row in first.rows} & {row.name for row in second.rows} - {name for name, *_ in shared}
    # A cut name, or a kernel beside its operator, stands for several rows, of which each table may print another one.
    if any(keys[name] > 1 and "..." not in name for name in names):
        return False
    if first.is_total_printed and second.is_total_printed:
        totals = [(table.cpu_s, (table.device_s or 0.0) + table.annotations_s) for table in (first, second)]
        return all(_is_same(earlier, later, 1e-9) for earlier, later in zip(*totals, strict=True))
    return sum(bool(cpu_s or device_s) for *_, cpu_s, device_s in shared) >= 2


_OVERHEAD = re.compile(
    r"(cuda|cu|hip|ze|ur|acl(rt)?)[A-Z]\w+$|Activity Buffer Request|Command Buffer Full|Buffer Flush"
    r"|Lazy Function Loading|Runtime Triggered Module Loading|Instrumentation$|Resource$"
    r"|(Context|Event|Stream) (Sync|Wait Event)|\[memory\]$"
)
# Namespaces whose functions are operators even in rows without CPU time.
_TORCH_OPERATOR = re.compile(r"(aten|prims?|torch|c10d\w*|autograd)::")
# `bitsandbytes::dequantize_4bit`: a C++ kernel's name has a return type, a template or parameters.
_OPERATOR = re.compile(r"\w+::[\w.]+$|autograd::engine::evaluate_function: ")
_CPU_OPERATOR = re.compile(r"\w+::|\w+Backward\d*$")
_ANNOTATION = re.compile(
    r"ProfilerStep|Optimizer\.\w+#|(nccl|gloo|mpi|ucc|xccl|c10d):\w|Torch-Compiled Region|## Call |execute_\w+"
    r"|gpu_model_runner|\[pl\]|DistributedDataParallel|FullyShardedDataParallel|FSDP::|enumerate\("
)
# Names that only a compiler writes, unlike those that a person gives to an annotation.
_COMPILED = re.compile(
    r"void |_Z\w|Cijk_|Mem(cpy|set)\b|triton_(poi|per|red|tem|mm|bmm|for|split|unk|foreach)_|\S*::.*[<(&]|\w+<"
)
_LIKE_A_KERNEL = re.compile(
    r"(ampere|turing|volta|hopper|cutlass\w*|cublas\w*|cudnn|nvjet|fmha|flash|ck|hipblas\w*|rocblas|kernel|mscclpp)_\w"
    r"|_[a-z]\w*$|\w*(_kernel|Kernel|_sm\d\d|_gfx\d|\d+x\d+|_(fwd|bwd)(_|$))|gemm\w*$|(nccl|rccl)(Dev|_)"
)


def _with_kinds(rows: Sequence[TableRow], total_s: float | None) -> tuple[TableRow, ...]:
    hosts: dict[str, list[TableRow]] = {}
    for row in rows:
        if row.has_cpu_time:
            hosts.setdefault(row.name, []).append(row)
    own = [row.self_device_s for group in hosts.values() for row in group if row.self_device_s]
    first = [replace(row, kind=_kind(row, hosts.get(row.name, []), own, total_s)) for row in rows]
    known_s = _device_s(row for row in first if row.kind in ("kernel", "unclear"))
    if total_s and FILLED * total_s <= known_s <= total_s * (1 + ROUNDING):
        first = [replace(row, kind="kernel") if row.kind == "unclear" else row for row in first]
    if any(row.has_cpu_column for row in rows):
        return tuple(first)
    # Without CPU times, a compiled kernel and its operator of the same name are the same row twice.
    twins = [row.kind == "kernel" and row in first[position + 1 :] for position, row in enumerate(first)]
    return tuple(replace(row, kind="operator") if twin else row for row, twin in zip(first, twins, strict=True))


def _kind(row: TableRow, hosts: Sequence[TableRow], own: Sequence[float], total_s: float | None) -> Kind:
    """Return a row's kind. `hosts`: rows of the same name with CPU time; `own`: own device times of all operators."""
    if _OVERHEAD.match(row.name):
        return "overhead"
    own_s, is_annotation = row.self_device_s, _ANNOTATION.match(row.name)
    is_operator = (_TORCH_OPERATOR if row.has_cpu_column else _OPERATOR).match(row.name) and not is_annotation
    if row.has_cpu_time or not own_s or is_operator:
        return "operator"
    if _COMPILED.match(row.name):
        return "kernel"
    if is_annotation or " " in row.name or (total_s and own_s > total_s * (1 + ROUNDING)):
        return "span"
    # The own device time of an operator is that of its kernels, so a row with another time is no kernel of it.
    if hosts and not any(abs((host.self_device_s or 0.0) - own_s) <= 0.1 * own_s for host in hosts):
        return "span"
    is_operators = any(_is_same(own_s, operator_s) for operator_s in own)
    return "kernel" if is_operators or _LIKE_A_KERNEL.match(row.name) or "::" in row.name else "unclear"


def _is_same(first: float | None, second: float | None, tolerance: float = ROUNDING) -> bool:
    first, second = first or 0.0, second or 0.0
    return abs(first - second) <= tolerance * max(first, second)


def _device_s(rows: Iterable[TableRow]) -> float:
    return sum(row.self_device_s or 0.0 for row in rows)


def _known_s(rows: Iterable[TableRow]) -> float:
    return _device_s(row for row in rows if category(row.name) != "other")
