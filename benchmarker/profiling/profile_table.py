"""The profile as a markdown table: longest total first, in percent of kernel time, the whole column adding to 100."""

from __future__ import annotations

import re
import unicodedata

from tabulate import tabulate

from benchmarker.core.formatting import seconds
from benchmarker.profiling.categories import category
from benchmarker.schema.profile import Kernel, Profile

NAME_COLUMNS = 64


def profile_table(profile: Profile, *, what: str, limit: int = 12) -> str:
    """Header, table and what the device did with its time.

    Args:
        what: Was profiled, such as `generation, prompt of 26, 32 new tokens`.
        limit: Rows for single kernels; the others share a last one.
    """
    return f"{_header(profile, what)}\n\n{_rows(profile, limit)}\n\n{_footer(profile)}"


def shortened(name: str, columns: int = NAME_COLUMNS) -> str:
    """A readable name on one line, cut towards the end: what tells kernels apart is seldom at the very end."""
    plain = "".join(letter if unicodedata.category(letter)[0] != "C" else " " for letter in name)
    line = readable(" ".join(plain.split()))
    if len(line) <= columns:
        return line
    tail = columns // 4
    return f"{line[: columns - 1 - tail]}…{line[-tail:]}"


def hundredths(times: list[float]) -> list[str]:
    """Percentages with two decimals that add to 100.00 as printed, by the largest remainder.

    The row that rounding down cheats most is given the hundredth that is left, and so on.
    """
    total = sum(times)
    if total <= 0:
        return ["0.00" for _ in times]
    exact = [10_000 * time / total for time in times]
    whole = [int(share) for share in exact]
    by_remainder = sorted(range(len(times)), key=lambda index: whole[index] - exact[index])
    for index in by_remainder[: 10_000 - sum(whole)]:
        whole[index] += 1
    return [f"{share / 100:.2f}" for share in whole]


def _header(profile: Profile, what: str) -> str:
    return f"One profiled {what}: by {'device' if profile.by == 'device' else 'CPU'} time"


def _rows(profile: Profile, limit: int) -> str:
    longest, others = profile.kernels[:limit], profile.kernels[limit:]
    what = "kernel" if profile.by == "device" else "operator"
    lines = [(_code(kernel.name), str(category(kernel.name)), *_numbers(kernel)) for kernel in longest]
    if others:
        together = Kernel(
            name="", calls=sum(kernel.calls for kernel in others), total_s=sum(kernel.total_s for kernel in others)
        )
        lines.append((f"({len(others)} other {what}s)", "", *_numbers(together)))
    percent = hundredths(
        [kernel.total_s for kernel in longest] + [sum(kernel.total_s for kernel in others)] * bool(others)
    )
    return tabulate(
        [
            (name, purpose, time, share, calls, mean)
            for (name, purpose, time, calls, mean), share in zip(lines, percent, strict=True)
        ],
        headers=(what, "category", "time", "%", "calls", "average"),
        tablefmt="pipe",
        colalign=("left", "left", "right", "right", "right", "right"),
        disable_numparse=True,
    )


def _numbers(kernel: Kernel) -> tuple[str, str, str]:
    return seconds(kernel.total_s), f"{kernel.calls:,}", seconds(kernel.total_s / kernel.calls)


def _footer(profile: Profile) -> str:
    calls = sum(kernel.calls for kernel in profile.kernels)
    if profile.by == "cpu":
        return f"{seconds(profile.kernel_s)} in {calls:,} calls, each without what it called in turn."
    share = 100 * profile.busy_s / profile.span_s if profile.span_s else 100.0
    return (
        f"{seconds(profile.kernel_s)} in {calls:,} launches; the device was busy for {seconds(profile.busy_s)} of "
        f"{seconds(profile.span_s)} ({share:.0f} %). The profiler slows the host, so it idles less when not profiled."
    )


def _code(name: str) -> str:
    """The name as code in a table's cell, where only a backtick and a bar mean anything."""
    return f"`{shortened(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\(anonymous namespace\)::", ""),
        # copy_kernel(Iterator&)::{lambda()#3}::operator()() const::{lambda(float)#1} -> copy_kernel(float)
        (r"\([^()]*\)(?:::\{lambda\(\)#\d+\}::operator\(\)\(\) const)*::\{lambda\(([^()]*)\)#\d+\}", r"(\1)"),
        # gpu_kernel_impl<Functor>(Iterator&, Functor const&)::{lambda(int)#1}, a wrapper round every operator
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
    )
)


def readable(name: str) -> str:
    """The name without its namespaces, its parameter list and what it repeats."""
    for pattern, replacement in _REPLACEMENTS:
        name = pattern.sub(replacement, name)
    return _without_parameters(name)


def _without_parameters(name: str) -> str:
    """Cut at the first parenthesis outside the angle brackets, where a template's name has ended."""
    depth = 0
    for index, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and name[index - 1 : index] == ">":
            return name[:index]
    return name
