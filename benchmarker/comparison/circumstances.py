"""What must be equal in all records of a table: device, what drives it, versions and settings that change a rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarker.comparison.comparing import Circumstance
from benchmarker.core.packages import COMPUTING
from benchmarker.schema.record import RunRecord
from benchmarker.schema.registry import workload_of

INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
COMPILER = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
OF_VARIANTS = ("torchao", "bitsandbytes", "optimum", "gptqmodel")
"""Libraries that only some variants run."""
UNSAID = ("power limit", "governor")
"""Circumstances that older records and some machines do not tell: a record without them agrees with any."""


def circumstances(workload: str, records: Sequence[RunRecord] = ()) -> dict[str, Circumstance]:
    """What must be equal in all records, by its name in a message: each is a function of a record."""
    return {
        "device": lambda record: record.environment.device.name,
        "device kind": lambda record: record.environment.device.kind,
        "driver": lambda record: record.environment.device.driver,
        "device runtime": lambda record: record.environment.device.runtime,
        "power limit": _power_limit,
        "processor": lambda record: record.environment.cpu,
        "cores": _on_cpu(lambda record: record.environment.cores),
        "threads": _on_cpu(lambda record: record.environment.threads),
        "governor": _on_cpu(lambda record: record.environment.governor),
        "instruction switches": _on_cpu(_switches(INSTRUCTIONS)),
        "compiler switches": _switches(COMPILER),
        "Python": _python,
        "libraries imported": lambda record: "once a round" if record.forked else "in each process",
        **workload_of(workload).circumstances(records),
        "benchmarker": lambda record: record.benchmarker,
        **{package: _version_of(package) for package in COMPUTING},
    }


def _on_cpu(value_of: Callable[[RunRecord], object]) -> Circumstance:
    """What decides a rate on a CPU, and on a GPU next to nothing: None there."""

    def circumstance(record: RunRecord) -> str | None:
        value = value_of(record) if record.environment.device.kind == "cpu" else None
        return str(value) if value else None

    return circumstance


def _switches(names: tuple[str, ...]) -> Circumstance:
    """Environment variables that choose what the same program runs; None where none of them is set."""

    def switches(record: RunRecord) -> str | None:
        variables = record.environment.variables
        return ", ".join(f"{name}={variables[name]}" for name in names if name in variables) or None

    return switches


def _power_limit(record: RunRecord) -> str | None:
    limit_w = record.environment.device.power_limit_w
    return f"{limit_w:.0f} W" if limit_w else None


def _python(record: RunRecord) -> str | None:
    """`3.12`: the last number of a version changes no speed."""
    return ".".join(record.environment.python.split(".")[:2]) if record.environment.python else None


def _version_of(package: str) -> Circumstance:
    """None for a library that the variant does not run: its version is no matter."""

    def version(record: RunRecord) -> str | None:
        libraries = record.libraries
        is_run = package not in OF_VARIANTS or libraries is None or package in libraries
        return record.environment.packages.get(package) if is_run else None

    return version
