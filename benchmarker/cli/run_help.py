"""The options of each workload's run as files beside this one, so that `run --help` imports no workload.

To make the options from the fields of a job takes longer than all the rest of the help. `script/make_docs.py` writes
the files, and `tests/cli/test_docs.py` fails while they differ from the fields. A workload without a file is imported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarker.schema.option import Option

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

FOLDER = Path(__file__).parent / "run_help"
HELP_WORDS = (["-h"], ["--help"])


@dataclass(frozen=True)
class RunHelp:
    """What `--help` says of a workload's run."""

    command: str
    """`benchmarker run attention`."""
    example: str
    """Arguments that measure something."""
    options: tuple[Option, ...]


def run_help(workload: Workload) -> RunHelp:
    """The help made from the fields of the workload's job."""
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    name = "" if workload.name == DEFAULT_WORKLOAD else f" {workload.name}"
    return RunHelp(f"benchmarker run{name}", workload.example, tuple(workload.options()))


def saved_help(arguments: Sequence[str]) -> RunHelp | None:
    """The saved help that the arguments of `benchmarker run` ask for.

    Returns:
        None where they ask for something else, or no help is saved of the workload that they name.
    """
    from benchmarker.schema.registry import DEFAULT_WORKLOAD, WORKLOADS

    workload, rest = DEFAULT_WORKLOAD, list(arguments)
    if rest and rest[0] in WORKLOADS:
        workload, rest = rest[0], rest[1:]
    if rest not in HELP_WORDS or not _path(workload).exists():
        return None
    return _saved(workload)


def quantization_names() -> str:
    """What the saved help of `run` says of `--quant`: the names, and where to read on."""
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    return next(option.help for option in _saved(DEFAULT_WORKLOAD).options if option.flag == "--quant")


def _path(workload: str) -> Path:
    return FOLDER / f"{workload}.json"


def _saved(workload: str) -> RunHelp:
    content = json.loads(_path(workload).read_text(encoding="utf-8"))
    options = tuple(Option(**option) for option in content["options"])
    return RunHelp(content["command"], content["example"], options)


def as_json(workload: Workload) -> str:
    """The content of the workload's file: an option a line."""
    made_help = run_help(workload)
    lines = [json.dumps(asdict(option), ensure_ascii=False) for option in made_help.options]
    head = f'{{"command": {json.dumps(made_help.command)}, "example": {json.dumps(made_help.example)}, "options": ['
    return head + "\n" + ",\n".join(lines) + "\n]}\n"
