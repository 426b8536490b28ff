"""Request of a sweep: variants, options, rounds and folder, checked before anything runs."""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarker.core.errors import ResultsError, SpecError, comma_hint, did_you_mean
from benchmarker.execution.job_file import is_job_file, saved_jobs
from benchmarker.execution.make_job import make_job
from benchmarker.schema.config_io import parse_experiment, read_config_bytes
from benchmarker.schema.job import PROGRAM, ExperimentBase, Job
from benchmarker.sweep.folder import SweepFile, latest_sweep, read_sweep_file

RESULTS = Path("results")
SEEDS = 2**16
LOAD_LIMIT_S = 3600.0
"""Downloading 8 GB on a slow line, or quantizing 4 billion weights, takes most of an hour."""
QUICK_ROUNDS = 1
PUBLISH_ROUNDS = 10
MAX_ROUNDS = 10
"""Limit on added rounds if neither the config nor an option gives a number of rounds."""


@dataclass(frozen=True)
class Settings:
    """Options of the sweep itself."""

    rounds: int | None = None
    output: Path | None = None
    """Folder for the records; None for a new one in `results/<device>/<model>`."""
    resume: bool = False
    timeout_s: float | None = None
    load_timeout_s: float = LOAD_LIMIT_S
    cell_timeout_s: float | None = None
    """Seconds for one cell; None for ten times as long as the cell took before."""
    seed: int | None = None
    dry_run: bool = False
    allow_shared: bool = False
    """Accept cells that were measured while other processes computed on the device."""
    shared_imports: bool = False
    """Fork a round's processes from one process that has imported the libraries."""
    max_rounds: int | None = None
    """Rounds are added up to this number until the intervals are narrow; None for the default."""
    max_time_s: float | None = None
    """Seconds after which no round is added; None for no limit."""
    places: str | None = None
    """Workers, as `local:0,1` or `ray`; None for the children of this process."""
    runtime_env: Path | None = None
    """File with Ray's runtime_env; None for the hosts' own installations."""


@dataclass(frozen=True)
class Options:
    """Options that a sweep passes on to every run, parsed once."""

    typed: Mapping[str, Any]
    """Values by their place in the job, such as `grid.new_tokens`."""
    device: str
    text: tuple[str, ...]
    """The options as typed, for the records' `reproduce` and for messages."""
    display: tuple[str, ...]
    """--quiet and --verbose, which change nothing that is measured."""


@dataclass(frozen=True)
class ConfigFile:
    path: Path
    sha256: str
    experiment: ExperimentBase


@dataclass(frozen=True)
class SweepRequest:
    """A checked request: the jobs of the variants, the rounds and the folder."""

    config: Path
    config_sha256: str
    """SHA-256 of the config's content that the jobs were made from."""
    arguments: tuple[str, ...]
    display: tuple[str, ...]
    jobs: Mapping[str, Job]
    saved: tuple[Job, ...]
    baseline: str
    rounds: int
    max_rounds: int | None
    """Rounds are added up to this number while an interval is wide; None for no added rounds."""
    seed: int
    folder: Path | None
    """None for a new folder, which is named after the device."""
    before: SweepFile | None
    notes: tuple[str, ...]
    settings: Settings


def read_config(path: Path) -> ConfigFile:
    content = read_config_bytes(path)
    return ConfigFile(path, hashlib.sha256(content).hexdigest(), parse_experiment(content, path))


def make_request(config: ConfigFile, words: Sequence[str], options: Options, settings: Settings) -> SweepRequest:
    """Check everything that was given.

    Args:
        words: Names of variants, and at most one folder.

    Raises:
        BenchmarkerError: A name or an option is wrong, or the folder belongs to another sweep.
    """
    experiment, path = config.experiment, config.path
    names, word = chosen(experiment, words, path)
    if word and not settings.resume:
        raise SpecError(f"{word}: no variant of {path}; to resume a sweep in that folder, add --resume")
    folder = word or settings.output or (latest_sweep(RESULTS, path) if settings.resume else None)
    before, notes = _before(path, folder, settings)
    saved = tuple(saved_jobs(folder)) if before else ()
    # Without names and options, a sweep is resumed as it was, even if the config was edited since.
    earlier = _saved_variants(saved, before) if before and not options.text and len(words) == bool(word) else {}
    jobs = earlier or _new_jobs(config, names, options)
    arguments = before.arguments if earlier and before else (*names, *options.text)
    first = experiment.baseline or experiment.variants[0].name
    baseline = next((title for name, title in zip(names, jobs, strict=False) if not earlier and name == first), first)
    origins = [job.origin for job in earlier.values() if job.origin]
    return SweepRequest(
        config=path,
        config_sha256=origins[0].config_sha256 if origins else config.sha256,
        arguments=arguments,
        display=options.display,
        jobs=jobs,
        saved=saved,
        baseline=(before.baseline if earlier and before else None) or baseline,
        rounds=settings.rounds or (before.rounds if before else experiment.procedure.rounds),
        max_rounds=_max_rounds(settings, before, experiment),
        seed=_seed(settings, before),
        folder=folder,
        before=before,
        notes=(*notes, *_edited(config, saved, is_used=not earlier), *_replaced(before, arguments)),
        settings=settings,
    )


def chosen(experiment: ExperimentBase, words: Sequence[str], config: Path) -> tuple[list[str], Path | None]:
    """Return the named variants in the config's order (all if none is named), and the folder among the words."""
    names = [variant.name for variant in experiment.variants]
    others = [word for word in words if word not in names]
    if len(others) > 1 or (others and not ("/" in others[0] or Path(others[0]).is_dir())):
        hint = comma_hint(others[-1]) or did_you_mean(others[-1], names)
        if set(others[-1].split(",")) <= set(names):
            hint = f"; write names with spaces between them: {others[-1].replace(',', ' ')}"
        raise SpecError(f"{config}: no variant '{others[-1]}'{hint}")
    wanted = set(words) & set(names)
    return [name for name in names if not wanted or name in wanted], Path(others[0]) if others else None


def rounds_of(rounds: int | None, *, quick: bool, publish: bool) -> int | None:
    """Return the number of rounds that the options request; None without such an option."""
    choices = [*([rounds] if rounds else []), *[QUICK_ROUNDS] * quick, *[PUBLISH_ROUNDS] * publish]
    if len(choices) > 1:
        raise SpecError("--rounds, --quick (1) and --publish (10) each set the number of rounds; give one of them")
    return choices[0] if choices else None


def _max_rounds(settings: Settings, before: SweepFile | None, experiment: ExperimentBase) -> int | None:
    if settings.max_rounds or settings.rounds:
        return settings.max_rounds
    if before:
        return before.max_rounds
    return None if "rounds" in experiment.procedure.model_fields_set else MAX_ROUNDS


def _before(config: Path, folder: Path | None, settings: Settings) -> tuple[SweepFile | None, tuple[str, ...]]:
    if not settings.resume:
        return None, ()
    if folder and not folder.is_dir():
        raise ResultsError(f"--resume: there is no folder {folder}; without --resume a new sweep begins")
    try:
        before = read_sweep_file(folder) if folder else None
    except ResultsError as error:
        return None, (f"{error}; the records beside it are used",)
    if before and Path(before.config).resolve() != config.resolve():
        raise ResultsError(f"--resume: the sweep in {folder} is of {before.config}, not of {config}; give that one")
    if not before and folder and any(not is_job_file(path) for path in folder.glob("*.json")):
        raise ResultsError(f"--resume: {folder} holds records that no sweep made; choose another folder with --output")
    return before, () if before else ("there is no sweep of this config to resume; this is a new one",)


def _saved_variants(saved: Sequence[Job], before: SweepFile) -> dict[str, Job]:
    jobs = {job.variant.name: job for job in saved}
    names = before.variants or tuple(jobs)
    return {name: jobs[name] for name in names} if jobs.keys() >= set(names) else {}


def _new_jobs(config: ConfigFile, variants: Sequence[str], options: Options) -> dict[str, Job]:
    """Make and check the job of every variant before the first one runs."""
    jobs: dict[str, Job] = {}
    for variant in variants:
        arguments = ["--config", str(config.path), "--variant", variant, *options.text]
        job = make_job(
            options.typed,
            config=config.path,
            variant=variant,
            device=options.device,
            reproduce=f"{PROGRAM} {shlex.join(arguments)}",
            experiment=config.experiment,
        )
        if job.variant.name in jobs:
            raise SpecError(f"these options make two variants named '{job.variant.name}'; give one variant alone")
        jobs[job.variant.name] = job
    return jobs


def _replaced(before: SweepFile | None, arguments: tuple[str, ...]) -> tuple[str, ...]:
    if before is None or before.arguments == arguments:
        return ()
    return (f"--resume: '{shlex.join(arguments)}' replaces the earlier '{shlex.join(before.arguments)}'",)


def _seed(settings: Settings, before: SweepFile | None) -> int:
    if settings.seed is not None:
        return settings.seed
    return before.seed if before else random.randrange(SEEDS)


def _edited(config: ConfigFile, saved: Sequence[Job], *, is_used: bool) -> tuple[str, ...]:
    if all(job.origin is None or job.origin.config_sha256 == config.sha256 for job in saved):
        return ()
    effect = (
        "its present content is measured, because variants or options are given"
        if is_used
        else "the jobs saved in the folder are measured; a new sweep measures its present content"
    )
    return (f"--resume: {config.path} has changed since this sweep began; {effect}",)
