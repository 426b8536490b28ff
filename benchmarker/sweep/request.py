"""Request of a sweep: variants, options, rounds and folder, checked before anything runs."""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarker.checkpoints.cache import has_random_weights
from benchmarker.checkpoints.find import gguf_file, local_folder
from benchmarker.core.errors import ResultsError, SpecError, comma_hint, did_you_mean
from benchmarker.execution.jobs import make_job, saved_jobs
from benchmarker.schema.config_io import parse_experiment, read_config_bytes
from benchmarker.schema.job import PROGRAM, ExperimentBase, Job
from benchmarker.schema.model import ModelSpec
from benchmarker.schema.record_io import record_paths
from benchmarker.sweep.resume import KeptSettings, SweepFile, latest_sweep, read_sweep_file

RESULTS = Path("results")
MAX_ROUNDS = 10
"""Maximum number of rounds, added ones included, if neither the config nor an option gives a number of rounds."""


@dataclass(frozen=True)
class Settings:
    rounds: int | None = None
    output: Path | None = None
    resume: bool = False
    timeout_s: float | None = None
    load_timeout_s: float = 3600.0
    """Time limit of loading. Downloading 8 GB on a slow line, or quantizing 4 billion weights, takes almost an hour."""
    cell_timeout_s: float | None = None
    seed: int | None = None
    dry_run: bool = False
    allow_shared: bool = False
    shared_imports: bool = False
    max_rounds: int | None = None
    max_time_s: float | None = None
    places: str | None = None
    """Workers, as `local:0,1` or `ray`; None for a single worker in this process."""
    runtime_env: Path | None = None


@dataclass(frozen=True)
class Options:
    typed: Mapping[str, Any]
    """Values by field of the job, such as `grid.new_tokens`."""
    device: str
    text: tuple[str, ...]
    display: tuple[str, ...]


@dataclass(frozen=True)
class ConfigFile:
    path: Path
    sha256: str
    experiment: ExperimentBase


@dataclass(frozen=True)
class SweepRequest:
    config: ConfigFile
    jobs: Mapping[str, Job]
    display: tuple[str, ...]
    file: SweepFile
    folder: Path | None
    """Folder that the user gave or that is resumed; None for a new one, which is named after the device."""
    before: SweepFile | None
    """Content of sweep.json when a sweep is resumed; None for a new sweep."""
    saved: tuple[Job, ...]
    notes: tuple[str, ...]
    settings: Settings


def read_config(path: Path) -> ConfigFile:
    content = read_config_bytes(path)
    return ConfigFile(path, hashlib.sha256(content).hexdigest(), parse_experiment(content, path))


def make_request(config: ConfigFile, words: Sequence[str], options: Options, settings: Settings) -> SweepRequest:
    """Return the checked request; `words` are names of variants and at most one folder. Raises BenchmarkerError."""
    experiment, path = config.experiment, config.path
    names, word = chosen(experiment, words, path, is_resumed=settings.resume)
    if word and not settings.resume:
        raise SpecError(f"{word}: no variant of {path}; to resume a sweep in that folder, add --resume")
    folder = word or settings.output or (latest_sweep(RESULTS, path) if settings.resume else None)
    before, notes = _before(path, folder) if settings.resume else (None, ())
    if before and before.settings:
        changes = {name: value for name, value in before.settings if getattr(settings, name) == getattr(Settings, name)}
        if settings.shared_imports and not before.settings.shared_imports:
            changes["shared_imports"] = False
            notes += (f"--resume: the sweep in {folder} began without --shared-imports and goes on without it",)
        settings = replace(settings, **changes)
    saved = tuple(saved_jobs(folder)) if before else ()
    # Without names and options, a sweep is resumed as it was, even if the config was edited since.
    earlier: dict[str, Job] = {}
    if before and not options.text and len(words) == bool(word):
        jobs_by_name = {job.variant.name: job for job in saved}
        before_names = before.variants or tuple(jobs_by_name)
        earlier = {name: jobs_by_name[name] for name in before_names} if {*before_names} <= {*jobs_by_name} else {}
    jobs = earlier or _new_jobs(config, names, options)
    first = experiment.baseline or experiment.first_baseline
    if before and earlier:
        arguments, baseline = before.arguments, before.baseline or first
    else:
        arguments = (*names, *options.text)
        baseline = next((title for name, title in zip(names, jobs, strict=False) if name == first), first)
    file = _sweep_file(config, before, settings, arguments=arguments, jobs=jobs, baseline=baseline)
    if any(job.origin and job.origin.config_sha256 != config.sha256 for job in saved):
        effect = "its present content is measured, because variants or options are given"
        if earlier:
            effect = "the jobs saved in the folder are measured; a new sweep measures its present content"
        notes += (f"--resume: {path} has changed since this sweep began; {effect}",)
    if before and before.arguments != arguments:
        notes += (f"--resume: '{shlex.join(arguments)}' replaces the earlier '{shlex.join(before.arguments)}'",)
    return SweepRequest(config, jobs, options.display, file, folder, before, saved, notes, settings)


def _sweep_file(
    config: ConfigFile,
    before: SweepFile | None,
    settings: Settings,
    *,
    arguments: tuple[str, ...],
    jobs: Mapping[str, Job],
    baseline: str,
) -> SweepFile:
    procedure = config.experiment.procedure
    max_rounds = None if "rounds" in procedure.model_fields_set else MAX_ROUNDS
    if settings.max_rounds or settings.rounds:
        max_rounds = settings.max_rounds
    elif before:
        max_rounds = before.max_rounds
    seed = before.seed if before and settings.seed is None else settings.seed
    return SweepFile(
        config=before.config if before else str(config.path),
        arguments=arguments,
        variants=tuple(jobs),
        rounds=settings.rounds or (before.rounds if before else procedure.rounds),
        max_rounds=max_rounds,
        seed=seed if seed is not None else random.randrange(2**16),
        started_at=before.started_at if before else datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=baseline,
        settings=KeptSettings(**{name: getattr(settings, name) for name in KeptSettings.model_fields}),
    )


def chosen(
    experiment: ExperimentBase, words: Sequence[str], config: Path, *, is_resumed: bool = False
) -> tuple[list[str], Path | None]:
    """Return the names of the chosen variants, by default all, and the folder among the words. Raises SpecError."""
    names = [variant.name for variant in experiment.variants]
    others = [word for word in words if word not in names]
    if len(others) > 1 or (others and not ("/" in others[0] or Path(others[0]).is_dir())):
        hint = comma_hint(others[-1]) or did_you_mean(others[-1], names)
        if set(others[-1].split(",")) <= set(names):
            hint = f"; write names with spaces between them: {others[-1].replace(',', ' ')}"
        folder = " and no folder" if is_resumed else ""
        raise SpecError(f"{config}: no variant{folder} '{others[-1]}'{hint}")
    wanted = set(words) & set(names)
    return [name for name in names if not wanted or name in wanted], Path(others[0]) if others else None


def rounds_of(rounds: int | None, *, quick: bool, publish: bool) -> int | None:
    choices = list(filter(None, [rounds, int(quick), 10 * publish]))
    if len(choices) > 1:
        raise SpecError("--rounds, --quick (1) and --publish (10) each set the number of rounds; give one of them")
    return choices[0] if choices else None


def _before(config: Path, folder: Path | None) -> tuple[SweepFile | None, tuple[str, ...]]:
    """Return the sweep.json of the sweep to resume, or None and the reason."""
    if folder and not folder.is_dir():
        raise ResultsError(f"--resume: there is no folder {folder}; without --resume a new sweep begins")
    try:
        before = read_sweep_file(folder) if folder else None
    except ResultsError as error:
        return None, (f"{error}; the records beside it are used",)
    if before and not before.is_of(config):
        raise ResultsError(f"--resume: the sweep in {folder} is of {before.config}, not of {config}; give that one")
    if not before and folder and record_paths(folder):
        raise ResultsError(f"--resume: {folder} holds records that no sweep made; choose another folder with --output")
    return before, () if before else ("there is no sweep of this config to resume; this is a new one",)


def _new_jobs(config: ConfigFile, variants: Sequence[str], options: Options) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for variant in variants:
        path, experiment, device = config.path, config.experiment, options.device
        again = f"{PROGRAM} {shlex.join(['--config', str(path), '--variant', variant, *options.text])}"
        job = make_job(
            options.typed, config=path, variant=variant, device=device, reproduce=again, experiment=experiment
        )
        if job.variant.name in jobs:
            raise SpecError(f"these options make two variants named '{job.variant.name}'; give one variant alone")
        jobs[job.variant.name] = job
    return jobs


def check_models(jobs: Iterable[Job]) -> None:
    """Raise ModelError for a local model that does not exist, SpecError for random weights beside trained ones."""
    names: dict[bool, list[str]] = {False: [], True: []}
    for job in jobs:
        if isinstance(job.source, ModelSpec):
            name = job.variant.name
            # The folder of a server that is already running may be on another host.
            if not (getattr(job.variant, "url", None) or gguf_file(job.source) or local_folder(job.source)):
                name += f" ({job.source.id}, no folder here)"
            names[has_random_weights(job.source)].append(name)
    if all(names.values()):
        random, trained = (", ".join(names[is_random]) for is_random in (True, False))
        reason = f"the weights of {random} are random, and those of {trained} are not"
        raise SpecError(f"{reason}, so their records would not compare; name variants of one kind")
