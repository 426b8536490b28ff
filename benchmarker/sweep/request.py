"""What a sweep was told: which variants, which options for every run, which folder. Checked before anything runs."""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.core.errors import ResultsError, SpecError, comma_hint, did_you_mean
from benchmarker.execution.job_file import is_job_file, saved_jobs
from benchmarker.schema.config_io import parse_experiment, read_config_bytes
from benchmarker.schema.experiment import ExperimentBase
from benchmarker.schema.job import PROGRAM, Job
from benchmarker.schema.options import option_names
from benchmarker.schema.registry import DEFAULT_WORKLOAD, workload_of
from benchmarker.sweep.folder import SweepFile, latest_sweep, read_sweep_file
from benchmarker.sweep.round_count import most_rounds

RESULTS = Path("results")
SEEDS = 2**16
DISPLAY = ("--quiet", "--verbose")
"""Options that change nothing of what is measured: they are asked anew each time."""
LOAD_LIMIT_S = 3600.0
"""Downloading 8 GB on a slow line, or quantizing 4 billion weights, takes the better part of an hour."""


@dataclass(frozen=True)
class Settings:
    """A sweep's own options."""

    rounds: int | None = None
    """Rounds of every variant; None for the config's."""
    output: Path | None = None
    """Folder for the records; None for a new one in `results/<device>/<model>`."""
    resume: bool = False
    timeout_s: float | None = None
    """Seconds for the whole sweep; None for no limit."""
    load_timeout_s: float = LOAD_LIMIT_S
    cell_timeout_s: float | None = None
    """Seconds for one cell; None for ten times as long as the cell took before."""
    seed: int | None = None
    """Seed of the variants' order; None for a new one."""
    dry_run: bool = False
    allow_shared: bool = False
    """Whether cells count that were measured while other processes computed on the device."""
    shared_imports: bool = False
    """Whether a round's processes are forks of one that has imported the libraries."""
    max_rounds: int | None = None
    """Rounds are added up to these until the intervals are narrow; None for the config's."""
    max_time_s: float | None = None
    """After so many seconds no round is added; None for no limit."""
    places: str | None = None
    """Where rounds are measured, as `local:0,1` or `ray`; None for one after another on this host."""
    runtime_env: Path | None = None
    """Ray's description of the environment at its hosts; None for what is installed there."""


@dataclass(frozen=True)
class SweepRequest:
    """What a sweep is asked to do, checked: its variants' jobs, its rounds and its folder."""

    config: Path
    config_sha256: str
    """SHA-256 of the config's content that the jobs were made from."""
    arguments: tuple[str, ...]
    """Names of variants, and options: what `--resume` says that it repeats or replaces."""
    display: tuple[str, ...]
    """Options that say how much every run prints."""
    jobs: Mapping[str, Job]
    """Each variant's job, by the name that the tables show."""
    saved: tuple[Job, ...]
    """Jobs that the folder holds from before."""
    baseline: str
    rounds: int
    max_rounds: int | None
    """Rounds are added up to these while an interval is wide; None for none."""
    seed: int
    folder: Path | None
    """None for a new one, whose name says what device it is."""
    before: SweepFile | None
    """The sweep to go on with; None for a new one."""
    notes: tuple[str, ...]
    """What the user should know of the folder."""


ReadJob = Callable[[Sequence[str], ExperimentBase], Job | None]
"""The job that a run's options ask for; None where they ask for help."""


def read_arguments(config: Path, arguments: Sequence[str], settings: Settings, *, read_job: ReadJob) -> SweepRequest:
    """Check everything that was given.

    Raises:
        BenchmarkerError: The config, a name or an option is wrong.
    """
    content = read_config_bytes(config)
    experiment = parse_experiment(content, config)
    content_sha256 = hashlib.sha256(content).hexdigest()
    words, options = split_arguments(arguments, experiment.workload)
    names, word = chosen(experiment, words, config)
    if word and not settings.resume:
        raise SpecError(f"{word}: no variant of {config}; to go on with a sweep in that folder, add --resume")
    folder = word or settings.output or (latest_sweep(RESULTS, config) if settings.resume else None)
    before, notes = _before(config, folder, settings)
    display = tuple(option for option in options if option in DISPLAY)
    options = [option for option in options if option not in DISPLAY]
    saved = tuple(saved_jobs(folder)) if before else ()
    jobs: dict[str, Job] | None = None
    if before and not options and len(words) == bool(word):
        words, options = split_arguments(_lasting(before.arguments), experiment.workload)
        jobs = _as_saved(saved, before.config, words, options)
        names = words if jobs else chosen(experiment, words, config)[0]
    lasting = _lasting((*names, *options))
    config_sha256 = next((job.origin.config_sha256 for job in (jobs or {}).values() if job.origin), content_sha256)
    notes = (*notes, *_edited(config, content_sha256, saved, is_used=jobs is None))
    jobs = jobs or _jobs(config, experiment, names, options, read_job)
    first = experiment.baseline or experiment.variants[0].name
    baseline = next((title for name, title in zip(names, jobs, strict=True) if name == first), first)
    return SweepRequest(
        config=config,
        config_sha256=config_sha256,
        arguments=lasting,
        display=display,
        jobs=jobs,
        saved=saved,
        baseline=baseline,
        rounds=settings.rounds or (before.rounds if before else experiment.procedure.rounds),
        max_rounds=most_rounds(settings.max_rounds, settings.rounds, before=before, experiment=experiment),
        seed=_seed(settings, before),
        folder=folder,
        before=before,
        notes=(*notes, *_replaced(before, lasting)),
    )


def split_arguments(arguments: Sequence[str], workload: str = DEFAULT_WORKLOAD) -> tuple[list[str], list[str]]:
    """Words that stand by themselves, and options of a run with their values.

    Raises:
        SpecError: There is no such option.
    """
    takes_value = option_names(workload_of(workload))
    words: list[str] = []
    options: list[str] = []
    is_value = False
    for word in arguments:
        name = word.partition("=")[0]
        if is_value:
            is_value = False
            options.append(word)
        elif not word.startswith("-"):
            words.append(word)
        elif name not in takes_value:
            raise SpecError(f"no option '{name}'{did_you_mean(name, takes_value)}")
        elif name == "--config":
            raise SpecError("--config: a sweep's config stands by itself, and there is one already")
        elif name == "--job":
            raise SpecError("--job: is measured by `benchmarker run`; a sweep takes a config")
        elif name == "--find-limit":
            raise SpecError("--find-limit: is for `benchmarker run`, one variant at a time; leave it out")
        else:
            is_value = takes_value[name] and name == word
            options.append(word)
    return words, options


def chosen(experiment: ExperimentBase, words: Sequence[str], config: Path) -> tuple[list[str], Path | None]:
    """The variants asked for, in the config's order, all if none is named; and the folder, where a word is one.

    Raises:
        SpecError: A word is neither a variant nor a folder, or there are two folders.
    """
    names = [variant.name for variant in experiment.variants]
    others = [word for word in words if word not in names]
    if len(others) > 1 or (others and not _looks_like_folder(others[0])):
        hint = comma_hint(others[-1]) or did_you_mean(others[-1], names)
        if set(others[-1].split(",")) <= set(names):
            hint = f"; write names with spaces between them: {others[-1].replace(',', ' ')}"
        raise SpecError(f"{config}: no variant '{others[-1]}'{hint}")
    wanted = set(words) & set(names)
    return [name for name in names if not wanted or name in wanted], Path(others[0]) if others else None


def _before(config: Path, folder: Path | None, settings: Settings) -> tuple[SweepFile | None, tuple[str, ...]]:
    """The sweep to go on with.

    Raises:
        ResultsError: The folder is not there, or holds records of something else.
    """
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
    return before, () if before else ("there is no sweep of this config to go on with; this is a new one",)


def _lasting(arguments: Sequence[str]) -> tuple[str, ...]:
    """Those that a sweep which goes on needs again."""
    return tuple(word for word in arguments if word not in DISPLAY)


def _replaced(before: SweepFile | None, lasting: tuple[str, ...]) -> tuple[str, ...]:
    """A line where something else is asked than before: cells that were measured otherwise are then not used."""
    if before is None or _lasting(before.arguments) == lasting:
        return ()
    return (f"--resume: '{shlex.join(lasting)}' replaces what was asked before, '{shlex.join(before.arguments)}'",)


def _seed(settings: Settings, before: SweepFile | None) -> int:
    if settings.seed is not None:
        return settings.seed
    return before.seed if before else random.randrange(SEEDS)


def _edited(config: Path, content_sha256: str, saved: Sequence[Job], *, is_used: bool) -> tuple[str, ...]:
    """A line where the config is not what the folder's jobs were made from, with what is measured then."""
    if all(job.origin is None or job.origin.config_sha256 == content_sha256 for job in saved):
        return ()
    way = (
        "it is measured as it is now, because variants or options are given"
        if is_used
        else "the jobs saved in the folder are measured, as it was then; a new sweep measures it as it is now"
    )
    return (f"--resume: {config} has changed since this sweep began; {way}",)


def _as_saved(
    saved: Sequence[Job], config: str, variants: Sequence[str], options: Sequence[str]
) -> dict[str, Job] | None:
    """The jobs of these variants as the folder has them; None where one is missing or was made with other options."""
    by_command = {job.reproduce: job for job in saved}
    commands = [f"{PROGRAM} {shlex.join(_arguments(config, variant, options))}" for variant in variants]
    if not commands or not by_command.keys() >= set(commands):
        return None
    return {by_command[command].variant.name: by_command[command] for command in commands}


def _arguments(config: str, variant: str, options: Sequence[str]) -> list[str]:
    """Those of a run of one variant."""
    return ["--config", config, "--variant", variant, *options]


def _jobs(
    config: Path,
    experiment: ExperimentBase,
    variants: Sequence[str],
    options: Sequence[str],
    read_job: ReadJob,
) -> dict[str, Job]:
    """Check every run before the first one starts.

    Returns:
        The jobs by the names that the tables will show.

    Raises:
        BenchmarkerError: A run would be refused.
    """
    jobs: dict[str, Job] = {}
    for variant in variants:
        job = read_job(_arguments(str(config), variant, options), experiment)
        if job is None:
            raise SpecError("--help stands before the config: benchmarker sweep --help")
        if job.variant.name in jobs:
            raise SpecError(f"these options make two variants named '{job.variant.name}'; give one variant alone")
        jobs[job.variant.name] = job
    return jobs


def _looks_like_folder(word: str) -> bool:
    return "/" in word or Path(word).is_dir()
