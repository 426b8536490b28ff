"""One log, and the kind of device that it is from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from benchmarker.profiling.printed_table import ProfilerTable

DeviceKind = Literal["cuda", "rocm", "cpu"]

# torch.cuda is HIP on ROCm, so that `Device: cuda` tells nothing.
_KINDS: dict[DeviceKind, re.Pattern[str]] = {
    "rocm": re.compile(r"roctracer|rocprofiler|\brocm|\bHIP\b|\bCijk_|\bAMD (Radeon|Instinct)|\bgfx\d", re.IGNORECASE),
    "cuda": re.compile(r"\bNVIDIA\b|\bCUPTI\b|\bnvjet_|\bampere_\w*gemm|\bGeForce\b", re.IGNORECASE),
    "cpu": re.compile(r"\bDevice: cpu\b"),
}


@dataclass(frozen=True)
class Log:
    """One log, and what is the same for all of its runs."""

    source: str
    """Name of the file."""
    sha256: str
    lines: tuple[str, ...]
    tables: tuple[ProfilerTable, ...]
    kind: DeviceKind | None
    """Of the device; None where the log does not say."""
    device: str | None
    """Name of the device, where the user gave it."""
    day: str | None
    """Given by the user, as the next."""
    model: str | None
    command: str
    """That imports it again."""


def kind_of(text: str) -> DeviceKind | None:
    """The kind of device that a log is from, or None where it does not say, or names two."""
    kinds = [kind for kind, pattern in _KINDS.items() if pattern.search(text)]
    return kinds[0] if len(kinds) == 1 else None
