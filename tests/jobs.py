"""Jobs as from the command line, made from the fields of each group."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarker.cli import run_command
from benchmarker.cli.run_command import RunCommand
from benchmarker.execution.jobs import make_job
from benchmarker.hardware.device import find_device
from benchmarker.hardware.read_environment import environment
from benchmarker.schema.job import PROGRAM, Job, Procedure
from benchmarker.workloads.generation.spec import (
    GenerationJob,
    GenerationSubject,
    Grid,
    ModelSpec,
    QualitySpec,
    VariantSpec,
)

GROUPS = {
    "model": "subject.model",
    "quality": "subject.quality",
    "form": "variant",
    "grid": "grid",
    "procedure": "procedure",
}


def job_of(*, options: list[str] | None = None, **asked: Any) -> GenerationJob:
    """The job of a generation.

    Args:
        options: `key=value` for the quantization.
        asked: Fields of a group under the group's name (`model={"id": ...}`), and arguments of `make_job`.
    """
    typed = {
        f"{place}.{field}": value for group, place in GROUPS.items() for field, value in asked.pop(group, {}).items()
    }
    job = make_job({**typed, "variant.options": options or None}, **asked)
    assert isinstance(job, GenerationJob)
    return job


def read_job(arguments: Sequence[str]) -> Any:
    """The job that `benchmarker run` makes of these arguments."""
    made: list[Job] = []

    def prepared_run(job: Job, _: object) -> None:
        made.append(job)
        raise InterruptedError

    replaced = patch.multiple(run_command, one_line_errors=nullcontext, _prepared_run=prepared_run)
    with replaced, suppress(InterruptedError):
        RunCommand(PROGRAM).main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
    (job,) = made
    return job.model_copy(update={"reproduce": f"{PROGRAM} {shlex.join(arguments)}".strip()})


def job_with(
    *,
    model: ModelSpec | None = None,
    variant: VariantSpec | None = None,
    procedure: Procedure | None = None,
    quality: QualitySpec | None = None,
    grid: Grid | None = None,
) -> GenerationJob:
    """Return a job of these parts, with defaults for all others."""
    return GenerationJob(
        workload="generation",
        subject=GenerationSubject(model=model or ModelSpec(), quality=quality or QualitySpec()),
        variant=variant or VariantSpec(name="fp16", quant="fp16"),
        grid=grid or Grid(),
        procedure=procedure or Procedure(),
        device="cpu",
        reproduce="",
    )


def known_host(folder: Path) -> tuple[str, ...]:
    """Return a command that prints the CPU's environment without importing torch, in place of `prepare_host`."""
    path = folder / "environment.json"
    path.write_text(environment(find_device("cpu")).model_dump_json())
    return ("sh", "-c", f"cat {shlex.quote(str(path))}")
