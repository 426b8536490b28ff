"""Every variant of a config, each measured in a fresh process, one after another.

This parent imports no torch and sleeps while a child measures: a parent that polls in a loop takes a core away from
what it measures.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarker.compare import compare
from benchmarker.errors import ResultsError, SpecError, did_you_mean
from benchmarker.report.markdown import to_markdown
from benchmarker.spec import Experiment, read_experiment
from benchmarker.terminal import Terminal

INTERRUPTED = 130


def run_sweep(config: Path, arguments: Sequence[str], terminal: Terminal) -> list[str]:
    """Run the variants, print the comparison, and say what failed.

    Args:
        arguments: Names of variants (all if there are none), then options for every run.

    Returns:
        Names of the variants that failed.

    Raises:
        SpecError: The config or a name in it is wrong; nothing has run.
        KeyboardInterrupt: Ctrl-C; what was finished is compared first.
    """
    experiment = read_experiment(config)
    names, options = split_arguments(arguments)
    variants = chosen(experiment, names, config)
    session = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    failed: dict[str, int] = {}
    interrupted = False
    for number, variant in enumerate(variants, start=1):
        terminal.line(f"[{number}/{len(variants)}] {variant}")
        code = _run_child(config, variant, [*options, "--session", session])
        interrupted = code == INTERRUPTED
        if code != 0:
            failed[variant] = code
        if interrupted:
            break
    _show(session, options, experiment, variants, terminal)
    for variant, code in failed.items():
        command = shlex.join(["python", "-m", "benchmarker.run", *_child_arguments(config, variant, options)])
        terminal.line(f"failed: {variant} ({_exit_in_words(code)}); alone: {command}")
    if interrupted:
        raise KeyboardInterrupt
    return list(failed)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names up to the first option, and the rest."""
    first = next((at for at, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def chosen(experiment: Experiment, names: Sequence[str], config: Path) -> list[str]:
    """The variants asked for, in the config's order.

    Raises:
        SpecError: There is no variant of that name.
    """
    known = [variant.name for variant in experiment.variants]
    for name in names:
        if name not in known:
            raise SpecError(f"{config}: no variant '{name}'{did_you_mean(name, known)}")
    return [name for name in known if not names or name in names]


def _child_arguments(config: Path, variant: str, options: Sequence[str]) -> list[str]:
    return ["--config", str(config), "--variant", variant, *options]


def _run_child(config: Path, variant: str, options: Sequence[str]) -> int:
    """Run one variant in its own process, its output ours.

    Returns:
        Its exit code; negative for a signal, as subprocess gives it.
    """
    command = [sys.executable, "-m", "benchmarker.run", *_child_arguments(config, variant, options)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            # The terminal sent Ctrl-C to the child too; it saves its finished cells and ends.
            child.wait()
            return INTERRUPTED


def _exit_in_words(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit {code}"


def _show(
    session: str, options: Sequence[str], experiment: Experiment, variants: Sequence[str], terminal: Terminal
) -> None:
    """Print the comparison of what this session recorded."""
    folders = _session_folders(session, options)
    if not folders:
        terminal.line("nothing was recorded, so there is nothing to compare")
        return
    baseline = experiment.baseline or experiment.variants[0].name
    try:
        terminal.table(to_markdown(compare(folders, baseline=baseline if baseline in variants else None)))
    except ResultsError as error:
        terminal.line(f"no comparison: {error}")
    for folder in folders:
        terminal.line(f"records: {folder}")


def _session_folders(session: str, options: Sequence[str]) -> list[Path]:
    """Where the children put their records: the folder they were given, or one named by device, model and session."""
    for at, word in enumerate(options):
        if word == "--output" and at + 1 < len(options):
            return [folder for folder in [Path(options[at + 1]) / session] if folder.exists()]
        if word.startswith("--output="):
            return [folder for folder in [Path(word.removeprefix("--output=")) / session] if folder.exists()]
    return sorted(Path("results").glob(f"*/*/{session}"))
