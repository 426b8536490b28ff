"""Module of each workload. Packages outside `workloads/` reach a workload only by this registry."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from benchmarker.core.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

WORKLOADS: dict[str, str] = {
    "generation": "benchmarker.workloads.generation.workload",
    "attention": "benchmarker.workloads.attention.workload",
    "mixers": "benchmarker.workloads.mixers.workload",
    "finetune": "benchmarker.workloads.finetune.workload",
    "context_parallel": "benchmarker.workloads.context_parallel.workload",
}
"""Modules with a `WORKLOAD`, by the workload's name."""
LOG_RECORD = "benchmarker.workloads.generation.log_record"
"""Module whose `to_record` makes a record of a run in a log of the reference script."""
DEFAULT_WORKLOAD = "generation"
"""Workload of a config file or command line that names none."""


def workload_of(name: str) -> Workload:
    """Return the workload of this name. Raises SpecError."""
    if name not in WORKLOADS:
        raise SpecError(f"no workload '{name}'{did_you_mean(name, WORKLOADS)}")
    description: Workload = import_module(WORKLOADS[name]).WORKLOAD
    return description
