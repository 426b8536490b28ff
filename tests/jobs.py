"""Jobs from the fields of each group or from command-line arguments."""

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


def job_of(*, options: list[str] | None = None, **groups: Any) -> GenerationJob:
    """Return a generation job.

    Args:
        options: `key=value` for the quantization.
        groups: Fields of a group under the group's name (`model={"id": ...}`), and arguments of `make_job`.
    """
    values = {
        f"{prefix}.{field}": value for group, prefix in GROUPS.items() for field, value in groups.pop(group, {}).items()
    }
    job = make_job({**values, "variant.options": options or None}, **groups)
    assert isinstance(job, GenerationJob)
    return job


def read_job(arguments: Sequence[str]) -> Any:
    """Return the job of `benchmarker run` with these arguments."""
    jobs: list[Job] = []

    def prepared_run(job: Job, _: object) -> None:
        jobs.append(job)
        raise InterruptedError

    patched = patch.multiple(run_command, one_line_errors=nullcontext, _prepared_run=prepared_run)
    with patched, suppress(InterruptedError):
        RunCommand(PROGRAM).main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
    (job,) = jobs
    return job.model_copy(update={"reproduce": f"{PROGRAM} {shlex.join(arguments)}".strip()})


def job_with(
    *,
    model: ModelSpec | None = None,
    variant: VariantSpec | None = None,
    procedure: Procedure | None = None,
    quality: QualitySpec | None = None,
    grid: Grid | None = None,
) -> GenerationJob:
    """Return a job with the given parts, and defaults for the remaining ones."""
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
    """Return a command that replaces `prepare_host`: it prints the CPU's environment without importing torch."""
    path = folder / "environment.json"
    path.write_text(environment(find_device("cpu")).model_dump_json())
    return ("sh", "-c", f"cat {shlex.quote(str(path))}")
