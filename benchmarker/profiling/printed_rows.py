"""Is a row of a profiler's table a kernel, an operator, or the span of an annotation?

The table does not say. It can be told from its times (what has no CPU time ran on the device), from a row of the same
name (an annotation has one for the host and one for the device), and from the name; where these leave it open, the
row is called unclear.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from benchmarker.profiling.printed_values import ROUNDING, Kind, TableRow

_OVERHEAD = re.compile(
    r"(cuda|cu|hip|ze)[A-Z]\w+$|Activity Buffer Request|Command Buffer Full|Buffer Flush|Lazy Function Loading"
    r"|Runtime Triggered Module Loading|Instrumentation$|Resource$|(Context|Event|Stream) (Sync|Wait Event)"
)
# `aten::mm`, `bitsandbytes::dequantize_4bit`: a C++ kernel's name has a return type, a template or parameters.
_OPERATOR = re.compile(r"\w+::[\w.]+$|autograd::engine::evaluate_function: ")
_ANNOTATION = re.compile(
    r"ProfilerStep|Optimizer\.\w+#|(nccl|gloo|mpi|ucc|xccl|c10d):\w|Torch-Compiled Region|## Call "
)
# What only a compiler writes, and what a person could have named an annotation.
_COMPILED = re.compile(
    r"void |_Z\w|Cijk_|Mem(cpy|set)\b|triton_(poi|per|red|tem|mm|bmm|for|split|unk|foreach)_|\S*::.*[<(]|\w+<"
)
_LIKE_A_KERNEL = re.compile(
    r"(ampere|turing|volta|hopper|cutlass\w*|cublas\w*|cudnn|nvjet|fmha|flash|ck|hipblas\w*|rocblas|kernel)_\w"
    r"|\w*(_kernel|Kernel|_sm\d\d|_gfx\d|\d+x\d+)|(nccl|rccl)(Dev|_)"
)


def with_kinds(rows: Sequence[TableRow], device_total_s: float | None) -> tuple[TableRow, ...]:
    """The rows with their kinds.

    Args:
        rows: All of one table, their kinds not yet told.
        device_total_s: Time of all kernels, if known: what takes longer is none.
    """
    hosts: dict[str, list[TableRow]] = defaultdict(list)
    for row in rows:
        if _has_cpu_time(row):
            hosts[row.name].append(row)
    return tuple(replace(row, kind=_kind(row, hosts.get(row.name, []), device_total_s)) for row in rows)


def _kind(row: TableRow, hosts: Sequence[TableRow], device_total_s: float | None) -> Kind:
    """What one row is.

    Args:
        hosts: Rows of the same name that have CPU time.
    """
    if _OVERHEAD.match(row.name):
        return "overhead"
    if _has_cpu_time(row) or not row.self_device_s or _OPERATOR.match(row.name):
        return "operator"
    if _COMPILED.match(row.name):
        return "kernel"
    if _is_span(row, hosts, device_total_s):
        return "span"
    return "kernel" if _LIKE_A_KERNEL.match(row.name) else "unclear"


def _is_span(row: TableRow, hosts: Sequence[TableRow], device_total_s: float | None) -> bool:
    own_s = row.self_device_s or 0.0
    if _ANNOTATION.match(row.name) or (device_total_s is not None and own_s > device_total_s * (1 + ROUNDING)):
        return True
    # An operator's own device time is that of its kernels, so a row that differs from it is no kernel of it.
    return bool(hosts) and not any(_about_equal(host.self_device_s or 0.0, own_s) for host in hosts)


def _has_cpu_time(row: TableRow) -> bool:
    return bool(row.self_cpu_s or row.cpu_total_s)


def _about_equal(first: float, second: float) -> bool:
    return abs(first - second) <= 0.1 * max(first, second)
