"""Table of a profile: longest total first, with percentages that add to 100, and readable kernel names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from benchmarker.core.formatting import seconds
from benchmarker.core.tables import Block, Column, Sheet, Text, code
from benchmarker.profiling.kernel_categories import category
from benchmarker.schema.record import Kernel, Profile

NAME_COLUMNS = 64


def profile_table(profile: Profile, *, what: str, limit: int = 12) -> list[Block]:
    heading = f"One profiled {what}: by {'device' if profile.by == 'device' else 'CPU'} time"
    return [heading, _rows(profile, limit), _footer(profile)]


def kernel_code(name: str, columns: int = NAME_COLUMNS) -> str:
    return code(shortened(name, columns))


def shortened(name: str, columns: int = NAME_COLUMNS) -> str:
    """Return a readable name in at most `columns` characters; a long name is cut in the middle: `gemm_ke…int)`."""
    plain = "".join(letter if unicodedata.category(letter)[0] != "C" else " " for letter in name)
    line = readable(" ".join(plain.split()))
    if len(line) <= columns:
        return line
    tail = columns // 4
    return f"{line[: columns - 1 - tail]}…{line[-tail:]}"


def hundredths(times: list[float]) -> list[str]:
    """Return percentages with two decimals that add to 100.00 as printed, by the method of the largest remainder."""
    total = sum(times)
    if total <= 0:
        return ["0.00" for _ in times]
    exact = [10_000 * time / total for time in times]
    rounded = [int(share) for share in exact]
    by_remainder = sorted(range(len(times)), key=lambda index: rounded[index] - exact[index])
    for index in by_remainder[: 10_000 - sum(rounded)]:
        rounded[index] += 1
    return [f"{share / 100:.2f}" for share in rounded]


KernelLine = tuple[str, str, float, int | None]  # Name, category, seconds and calls.


def kernel_lines(kernels: Sequence[Kernel], limit: int, *, unit: str, columns: int = NAME_COLUMNS) -> list[KernelLine]:
    """Return a line for each of the first `limit` kernels, and a line for the sum of the others."""
    lines: list[KernelLine] = [
        (Text(kernel_code(kernel.name, columns)), category(kernel.name), kernel.total_s, kernel.calls)
        for kernel in kernels[:limit]
    ]
    if others := kernels[limit:]:
        total_s, calls = sum(kernel.total_s for kernel in others), sum(kernel.calls for kernel in others)
        lines.append((f"({len(others)} other {unit}s)", "", total_s, calls))
    return lines


def _rows(profile: Profile, limit: int) -> Sheet:
    unit = "kernel" if profile.by == "device" else "operator"
    lines = kernel_lines(profile.kernels, limit, unit=unit)
    shares = hundredths([total_s for *_, total_s, _ in lines])
    rows = [(*line, share) for line, share in zip(lines, shares, strict=True)]
    columns = [
        Column[Any](unit, lambda row: row[0], "left"),
        Column[Any]("category", lambda row: row[1], "left"),
        Column[Any]("time", lambda row: seconds(row[2])),
        Column[Any]("%", lambda row: row[4]),
        Column[Any]("calls", lambda row: f"{row[3]:,}"),
        Column[Any]("average", lambda row: seconds(row[2] / row[3])),
    ]
    return Sheet("", columns, rows)


def _footer(profile: Profile) -> str:
    calls = sum(kernel.calls for kernel in profile.kernels)
    if profile.by == "cpu":
        return f"{seconds(profile.kernel_s)} in {calls:,} calls, each without the operators that it called."
    share = 100 * profile.busy_s / profile.span_s if profile.span_s else 100.0
    return (
        f"{seconds(profile.kernel_s)} in {calls:,} launches; the device was busy for {seconds(profile.busy_s)} of "
        f"{seconds(profile.span_s)} ({share:.0f} %). The profiler slows the host, so it idles less when not profiled."
    )


_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\(anonymous namespace\)::", ""),
        # copy_kernel(Iterator&)::{lambda()#3}::operator()() const::{lambda(float)#1} -> copy_kernel(float)
        (r"\([^()]*\)(?:::\{lambda\(\)#\d+\}::operator\(\)\(\) const)*::\{lambda\(([^()]*)\)#\d+\}", r"(\1)"),
        # gpu_kernel_impl<Functor>(Iterator&, Functor const&)::{lambda(int)#1}, a wrapper of every operator
        (r">\((?:[^()]|\([^()]*\))*\)::\{lambda\(int\)#\d+\}|>\(int\)(?=>)", ">"),
        (r"\b(?:at|native|c10|std|cuda|detail|memory|binary_internal|cublasLt|internal)::", ""),
        (r", (?:array<char\*, \d+ul>|TrivialOffsetCalculator<\d+, unsigned int>|unsigned int)", ""),
        (r", \d+, LoadWith\w+(?:<\d+>)?, StoreWith\w+(?:<\d+>)?", ""),
        (r"\b([A-Za-z_]\w*)(?:, \1)+\b", r"\1"),
        # BinaryFunctor<Half, MulFunctor<float> > -> MulFunctor<float>
        (r"(?:[AB]?Unary|Binary)Functor<[\w, ]+, (\w+<[^<>]*>) ?>", r"\1"),
        (r"ReduceOp<\w+, (\w+<[^<>]*>)(?:, \w+)*>", r"\1"),
        (r"gpu_kernel_impl(?:_nocast)?<(.*?)>(?= ?>)", r"\1"),
        (r" +>", ">"),
        (r"^void ", ""),
        # On a CPU the fused kernels are functions that the graph calls, and no operators of their own.
        (r"^## Call CompiledFxGraph (?:None|(\w{,5})\w*) ##$", r"compiled graph \1 (fused code)"),
        (r"  +", " "),
    )
)


def readable(name: str) -> str:
    """Return a C++ name without namespaces, parameter list and repetitions."""
    for pattern, replacement in _REPLACEMENTS:
        name = pattern.sub(replacement, name)
    # The parameter list begins outside angle brackets.
    depth = 0
    for index, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and name[index - 1 : index] == ">":
            return name[:index]
    return name
