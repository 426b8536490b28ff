"""What a sweep was told: which variants, which options for every run, which folder. Checked before anything runs."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarker.cli.run import known_options, read_job
from benchmarker.core.errors import ResultsError, SpecError, did_you_mean
from benchmarker.execution.job import Job
from benchmarker.schema.config_io import read_experiment
from benchmarker.schema.experiment import Experiment
from benchmarker.sweep.folder import SweepFile, latest_sweep, read_sweep_file

QUICK_ROUNDS = 1
PUBLISH_ROUNDS = 10
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
    """None for the config's."""
    output: Path | None = None
    """Folder for the records; None for a new one in `results/<device>/<model>`."""
    resume: bool = False
    timeout_s: float | None = None
    """For the whole sweep; None for no limit."""
    load_timeout_s: float = LOAD_LIMIT_S
    cell_timeout_s: float | None = None
    """None for ten times as long as the cell took before."""
    seed: int | None = None
    """Of the order; None for a new one."""
    dry_run: bool = False
    allow_shared: bool = False
    """Whether cells count that were measured while other processes computed on the device."""


@dataclass(frozen=True)
class Asked:
    """What a sweep is to do."""

    config: Path
    arguments: tuple[str, ...]
    """Names of variants, and options: all that `--resume` needs to ask for the same again."""
    options: tuple[str, ...]
    """Passed on to every run."""
    names: Mapping[str, str]
    """The config's name of each variant, by the name that the tables show."""
    jobs: Mapping[str, Job]
    """By the same name."""
    baseline: str
    rounds: int
    seed: int
    folder: Path | None
    """None for a new one, whose name says what device it is."""
    before: SweepFile | None
    """The sweep to go on with; None for a new one."""
    notes: tuple[str, ...]
    """What the user should know of the folder."""


def read_arguments(config: Path, arguments: Sequence[str], settings: Settings) -> Asked:
    """Check everything that was given.

    Raises:
        BenchmarkerError: The config, a name or an option is wrong.
    """
    experiment = read_experiment(config)
    words, options = split_arguments(arguments)
    names, word = chosen(experiment, words, config)
    if word and not settings.resume:
        raise SpecError(f"{word}: no variant of {config}; to go on with a sweep in that folder, add --resume")
    folder = word or settings.output or (latest_sweep(RESULTS, config) if settings.resume else None)
    before, notes = _before(config, folder, settings)
    display = [option for option in options if option in DISPLAY]
    if before and len(display) == len(options) and len(words) == bool(word):
        words, options = split_arguments(_lasting(before.arguments))
        names, _ = chosen(experiment, words, config)
        options += display
    lasting = _lasting((*names, *options))
    jobs = _jobs(config, names, options)
    first = experiment.baseline or experiment.variants[0].name
    return Asked(
        config=config,
        arguments=lasting,
        options=tuple(options),
        names={shown: name for shown, (name, _) in jobs.items()},
        jobs={shown: job for shown, (_, job) in jobs.items()},
        baseline=next((shown for shown, (name, _) in jobs.items() if name == first), first),
        rounds=settings.rounds or (before.rounds if before else experiment.procedure.rounds),
        seed=_seed(settings, before),
        folder=folder,
        before=before,
        notes=(*notes, *_replaced(before, lasting)),
    )


def rounds_of(rounds: int | None, *, quick: bool, publish: bool) -> int | None:
    """How many rounds the options ask for; None if none of them does.

    Raises:
        SpecError: More than one of them does.
    """
    asked = [number for number, given in ((rounds, rounds), (QUICK_ROUNDS, quick), (PUBLISH_ROUNDS, publish)) if given]
    if len(asked) > 1:
        raise SpecError("--rounds, --quick (1) and --publish (10) say the same thing; give one of them")
    return asked[0] if asked else None


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words that stand by themselves, and options of a run with their values.

    Raises:
        SpecError: There is no such option.
    """
    known = known_options()
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
        elif name not in known:
            raise SpecError(f"no option '{name}'{did_you_mean(name, known)}")
        elif name == "--config":
            raise SpecError("--config: a sweep's config stands by itself, and there is one already")
        else:
            is_value = known[name] and name == word
            options.append(word)
    return words, options


def chosen(experiment: Experiment, words: Sequence[str], config: Path) -> tuple[list[str], Path | None]:
    """The variants asked for, in the config's order, all if none is named; and the folder, where a word is one.

    Raises:
        SpecError: A word is neither a variant nor a folder, or there are two folders.
    """
    known = [variant.name for variant in experiment.variants]
    others = [word for word in words if word not in known]
    if len(others) > 1 or (others and not _looks_like_folder(others[0])):
        raise SpecError(f"{config}: no variant '{others[-1]}'{did_you_mean(others[-1], known)}")
    wanted = set(words) & set(known)
    return [name for name in known if not wanted or name in wanted], Path(others[0]) if others else None


def arguments_of(config: Path, variant: str, options: Sequence[str]) -> list[str]:
    """Those of a run of one variant."""
    return ["--config", str(config), "--variant", variant, *options]


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
    if not before and folder and any(folder.glob("*.json")):
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


def _jobs(config: Path, variants: Sequence[str], options: Sequence[str]) -> dict[str, tuple[str, Job]]:
    """Check every run before the first one starts.

    Returns:
        For each name that the tables will show, the config's name and the job.

    Raises:
        BenchmarkerError: A run would be refused.
    """
    jobs: dict[str, tuple[str, Job]] = {}
    for variant in variants:
        job = read_job(arguments_of(config, variant, options))
        if job is None:
            raise SpecError("--help stands before the config: benchmarker sweep --help")
        if job.variant.name in jobs:
            raise SpecError(f"these options make two variants named '{job.variant.name}'; give one variant alone")
        jobs[job.variant.name] = (variant, job)
    return jobs


def _looks_like_folder(word: str) -> bool:
    return "/" in word or Path(word).is_dir()
