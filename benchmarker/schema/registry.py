"""Where each workload's package is. Rooms outside a workload's folder reach it only through here."""

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
"""Packages whose `WORKLOAD` describes a workload, by the workload's name."""
DEFAULT_WORKLOAD = "generation"
"""Of a config file, a command line or an old record that names none."""


def workload_of(name: str) -> Workload:
    """The description of a workload.

    Raises:
        SpecError: There is none of this name.
    """
    if name not in WORKLOADS:
        raise SpecError(f"no workload '{name}'{did_you_mean(name, WORKLOADS)}")
    description: Workload = import_module(WORKLOADS[name]).WORKLOAD
    return description
