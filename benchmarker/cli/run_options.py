"""Options of `benchmarker run`: fields of a workload's job become options of typer, and typed values fill the fields.

Making the options from the fields takes longer than the rest of `run --help`. They are therefore saved as one file per
workload in `run_help`, written by `script/make_docs.py`; `tests/cli/test_docs.py` compares the files with the fields. A
workload without a file is imported.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarker.cli import completion
from benchmarker.core.errors import SpecError
from benchmarker.schema.options import Option

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

FOLDER = Path(__file__).parent / "run_help"
HELP_WORDS = (["-h"], ["--help"])
COMMON_FIRST = {
    "config": Annotated[Path | None, typer.Option(help="YAML file with the values that no option gives.")],
    "job_file": Annotated[
        Path | None, typer.Option("--job", help="Job that a sweep saved, with all options; measure it again.")
    ],
    "variant": Annotated[
        str | None, typer.Option(help="Name of one of the config's variants.", autocompletion=completion.variants)
    ],
}
COMMON_LAST: dict[str, tuple[Any, Any]] = {
    "device": (Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N (also on ROCm).")], "auto"),
    "output": (
        Annotated[
            Path | None,
            typer.Option("--output", "-o", help="Folder for the record.  \\[default: results/<device>/<subject>]"),
        ],
        None,
    ),
    "part": (
        Annotated[str | None, typer.Option(hidden=True, help="Share of a sweep that this process measures, as JSON.")],
        None,
    ),
    "find_limit": (
        Annotated[
            str | None,
            typer.Option(
                "--find-limit",
                help="Name of a size, such as seq_len: find the largest value that fits into memory, each in a "
                "process of its own.",
            ),
        ],
        None,
    ),
    "quiet": (Annotated[bool, typer.Option("--quiet", help="Print the table only.")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", help="Show the output of the libraries.")], False),
}
LISTS = ("wholes", "words", "texts", "pairs")
"""Kinds of options that may be repeated; their values add up."""
METAVARS = {"wholes": "<n,n>", "words": "<a,b>"}
"""Placeholder for the value in --help, by the kind; other kinds have typer's own."""
COMPLETED: dict[str, Callable[[], list[str]]] = {
    "variant.quant": completion.quantizations,
    "variant.engine": completion.engines,
}
"""Functions that complete the values of fields in a shell."""


@dataclass(frozen=True)
class RunHelp:
    """Content of `--help` for a workload's run."""

    command: str
    """`benchmarker run attention`."""
    example: str
    """Arguments of a working example."""
    options: tuple[Option, ...]


def run_help(workload: Workload) -> RunHelp:
    """Make the help from the fields of the workload's job."""
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    name = "" if workload.name == DEFAULT_WORKLOAD else f" {workload.name}"
    return RunHelp(f"benchmarker run{name}", workload.example, tuple(workload.options()))


def saved_help(arguments: Sequence[str]) -> RunHelp | None:
    """Return the saved help that the arguments of `benchmarker run` request; None for any other request."""
    from benchmarker.schema.registry import DEFAULT_WORKLOAD, WORKLOADS

    workload, rest = DEFAULT_WORKLOAD, list(arguments)
    if rest and rest[0] in WORKLOADS:
        workload, rest = rest[0], rest[1:]
    if rest not in HELP_WORDS or not (FOLDER / f"{workload}.json").exists():
        return None
    return _saved(workload)


def quantization_names() -> str:
    """Return the saved help of `--quant`, which lists the names."""
    from benchmarker.schema.registry import DEFAULT_WORKLOAD

    return next(option.help for option in _saved(DEFAULT_WORKLOAD).options if option.flag == "--quant")


def _saved(workload: str) -> RunHelp:
    content = json.loads((FOLDER / f"{workload}.json").read_text(encoding="utf-8"))
    options = tuple(Option(**option) for option in content["options"])
    return RunHelp(content["command"], content["example"], options)


def as_json(workload: Workload) -> str:
    """Return the content of the workload's file, one option per line."""
    made_help = run_help(workload)
    lines = [json.dumps(asdict(option), ensure_ascii=False) for option in made_help.options]
    head = f'{{"command": {json.dumps(made_help.command)}, "example": {json.dumps(made_help.example)}, "options": ['
    return head + "\n" + ",\n".join(lines) + "\n]}\n"


def with_options(function: Callable[..., Any], run_help: RunHelp) -> Callable[..., Any]:
    """Return the function with a signature from which typer makes the options of a workload's run."""

    def call(**values: Any) -> Any:
        return function(**values)

    parameters = [_parameter("context", typer.Context, inspect.Parameter.empty)]
    parameters += [_parameter(name, annotation, None) for name, annotation in COMMON_FIRST.items()]
    parameters += [
        _parameter(_name_of(option), _annotation(option), False if option.kind == "flag" else None)
        for option in run_help.options
    ]
    parameters += [_parameter(name, annotation, default) for name, (annotation, default) in COMMON_LAST.items()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__ = (
        f"Measure one variant, print the result and save its record.\n\nExample: {run_help.command} {run_help.example}"
    ).strip()
    return call


def typed_values(workload: Workload, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were typed, by their place in the job; raises SpecError."""
    typed: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in workload.options():
        value = _value(option, values[_name_of(option)])
        if value is None:
            continue
        if option.kind == "pairs" or option.key:
            typed[option.place] = [*typed.get(option.place, ()), *([f"{option.key}={value}"] if option.key else value)]
            continue
        spelling = option.flag if option.kind == "flag" else f"{option.flag} {value}"
        if typed.get(option.place, value) != value:
            field = option.place.rpartition(".")[2]
            raise SpecError(f"{sources[option.place]} and {spelling} give two values of {field}; give one of them")
        typed[option.place], sources[option.place] = value, spelling
    return typed


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers in `3,26`; raises SpecError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{option} {text}: write whole numbers separated by commas, such as 3,26") from None


def _name_of(option: Option) -> str:
    return f"{option.place}_{option.flag}".replace(".", "_").replace("-", "_")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(option: Option) -> Any:
    default = f"  \\[default: {option.default}]" if option.default else ""
    # Brackets are text here, and markup for typer.
    text = option.help if "\\[" in option.help else option.help.replace("[", "\\[")
    types: dict[str, Any] = {"flag": bool, "whole": int | None, "number": float | None}
    kind = types.get(option.kind, list[str] | None if option.kind in LISTS else str | None)
    complete = COMPLETED.get(option.place) if option.kind == "text" else None
    return Annotated[
        kind,
        typer.Option(
            option.flag,
            help=f"{text}{default}",
            rich_help_panel=option.panel,
            autocompletion=complete,
            metavar=METAVARS.get(option.kind),
        ),
    ]


def _value(option: Option, value: Any) -> Any:
    if option.kind == "flag":
        return option.value if value else None
    if value is None or value == []:
        return None
    if option.kind == "wholes":
        return [number for text in value for number in whole_numbers(option.flag, text)]
    return [word for text in value for word in text.split(",")] if option.kind == "words" else value
