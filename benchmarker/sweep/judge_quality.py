"""Judgements of a sweep: untimed measurements, such as quality, once for each quantization, after all rounds.

Variants with the same quantization, such as one model in several engines, share one measurement in a process of its
own. The child's record is temporary: its content goes into a record of each variant.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.errors import ResultsError
from benchmarker.core.formatting import slug
from benchmarker.schema.job import Job, Part
from benchmarker.schema.record import Missing, RunRecord, status_words
from benchmarker.schema.record_io import UNFINISHED, collect, read_record, write_json
from benchmarker.schema.registry import workload_of
from benchmarker.sweep.child import Child, Phase
from benchmarker.sweep.retries import fault_of
from benchmarker.sweep.sweep_plan import judged_groups
from benchmarker.sweep.sweep_state import Equipment, Failure, Sweep, now_id


@dataclass(frozen=True)
class Judgement:
    """Untimed measurement: the variants that share it, and the file names of the records that receive its result."""

    variants: tuple[str, ...]
    records: tuple[str, ...]

    def __str__(self) -> str:
        return f"judging {', '.join(self.variants)}"


def check_inputs(jobs: Iterable[Job]) -> None:
    """Check the inputs of quality measurements before the rounds, which may take hours; raises BenchmarkerError."""
    for job in jobs:
        if (judging := workload_of(job.workload).judging()) and judging.form(job):
            judging.check(job)


def missing_judgements(sweep: Sweep) -> list[Judgement]:
    """Return the judgements that are not done; those of variants without a record have no `records`."""
    judging, groups = sweep.workload.judging(), judged_groups(sweep.jobs)
    if judging is None or not groups:
        return []
    collected: Sequence[tuple[Path, RunRecord]] = ()
    with contextlib.suppress(ResultsError):
        collected = collect([sweep.folder]).files
    # Records in subfolders are of other sweeps.
    files = sorted((file for file in collected if file[0].parent == sweep.folder), key=lambda file: file[1].started_at)
    missing = []
    for variants in groups:
        job = sweep.jobs[variants[0]]
        by_variant = [[file for file in files if file[1].variant.name == name] for name in variants]
        pending = [pairs for pairs in by_variant if not any(judging.is_done(record, job) for _, record in pairs)]
        if pending:
            missing.append(Judgement(variants, tuple(pairs[-1][0].name for pairs in pending if pairs)))
    return missing


def judge(sweep: Sweep, equipment: Equipment, judgement: Judgement) -> None:
    """Run a judgement and write its result to its records; raises ResultsError or SweepInterruptedError."""
    judging, variant = sweep.workload.judging(), judgement.variants[0]
    assert judging is not None
    equipment.print_line(sweep.schedule.begin_judgement(judging.name, judgement.variants))
    started = time.monotonic()
    # The next sweep in the folder removes a file of this name that is left over.
    path = sweep.folder / f".{slug(variant)}-quality-{now_id()}{UNFINISHED}"
    child = JudgingChild(sweep, equipment, variant, path, ())
    try:
        end = child.run(Part(record=path, sweep=sweep.started_at, only="quality"), round_number=None)
    finally:
        path.unlink(missing_ok=True)
    sweep.schedule.learn_judgement(judgement.variants, time.monotonic() - started)
    tail, job, judged = child.log.last_lines, sweep.jobs[variant], child.record
    fields = judging.fields(job)
    results = {name: getattr(judged, name, None) for name in fields}
    reasons: dict[str, Missing | None] = {name: getattr(judged, f"no_{name}", None) for name in fields}
    missing = next(filter(None, reasons.values()), None) or fault_of(end, judged, problem=None, tail=tail)
    if missing:
        lost = [name for name, result in results.items() if not result]
        name = f"{variant}, {' and '.join(lost) or judging.name}"
        equipment.print_line(f"  {name}: {status_words(missing.status)}: {missing.reason}")
        failure = Failure(name, missing, log=child.log.path, tail=tail, alone=sweep.alone(variant))
        sweep.progress.failures.append(failure)
    changes = {name: result for name, result in results.items() if result}
    changes |= {f"no_{name}": reason or (None if results[name] else missing) for name, reason in reasons.items()}
    for path in (sweep.folder / name for name in judgement.records):
        write_json(read_record(path).model_copy(update=changes), path)


class JudgingChild(Child):
    def limit_s(self, phase: Phase) -> float:  # noqa: ARG002
        # Loading the variant, running the baseline, and scoring may each take this long.
        return self.sweep.settings.load_timeout_s

    def show(self, lines: list[str]) -> None:
        for line in lines:
            if not line.startswith(f"{self.variant}: "):
                self.equipment.print_line(f"  {line}")
