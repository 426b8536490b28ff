"""Options of `benchmarker run`: each field of a workload's job is an option of typer, whose value sets the field.

Making the options from the fields takes longer than the rest of `run --help`. They are therefore saved as one file per
workload in `run_help`, written by `script/make_docs.py`; `tests/cli/test_docs.py` compares the files with the fields. A
workload without a file is imported.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from benchmarker.cli import common_options
from benchmarker.core.errors import SpecError, comma_hint
from benchmarker.schema.options import Option
from benchmarker.schema.registry import DEFAULT_WORKLOAD

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

FOLDER = Path(__file__).parent / "run_help"
COMMON_FIRST = {
    "config": Annotated[Path | None, typer.Option(help="YAML file with the values that no option gives.")],
    "job_file": Annotated[
        Path | None, typer.Option("--job", help="Job that a sweep saved, with all options; measure it again.")
    ],
    "variant": Annotated[
        str | None, typer.Option(help="Name of one of the config's variants.", autocompletion=common_options.variants)
    ],
}
COMMON_LAST = {
    "device": common_options.DeviceName,
    "output": Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the record.  \\[default: results/<device>/<subject>]"),
    ],
    "part": Annotated[
        str | None, typer.Option(hidden=True, help="Share of a sweep that this process measures, as JSON.")
    ],
    "find_limit": Annotated[
        str | None,
        typer.Option(
            "--find-limit",
            help="Name of a size, such as seq_len: find the largest value that fits into memory, and of serving the "
            "largest load within the SLO, each in a process of its own.",
        ),
    ],
    "quiet": Annotated[bool, typer.Option("--quiet", help="Print the table only.")],
    "verbose": common_options.Verbose,
}
DEFAULTS = {"device": "auto", "quiet": False, "verbose": False}
LISTS = ("wholes", "numbers", "words", "texts", "pairs")  # Kinds of repeatable options; values are joined.
NUMBERS: dict[str, tuple[type[int] | type[float], str]] = {
    "wholes": (int, "whole numbers separated by commas, such as 3,26"),
    "numbers": (float, "numbers separated by commas, such as 0.5,2"),
}
METAVARS = {"wholes": "<n,n>", "numbers": "<n,n>", "words": "<a,b>"}
"""Placeholder of the value in --help, by kind of option; typer chooses that of the other kinds."""
COMPLETED = {"variant.quant": common_options.quantizations, "variant.engine": common_options.engines}
"""Function that returns the shell's completions of an option, by field of the job."""


@dataclass(frozen=True)
class RunHelp:
    command: str
    example: str
    options: tuple[Option, ...]


class RunOptions(TyperCommand):
    """Command with the options of one workload, without positional arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if ctx.args:
            raise SpecError(f"'{ctx.args[0]}' belongs to no option{comma_hint(ctx.args[0])}")
        return rest


def run_help(workload: Workload) -> RunHelp:
    name = "" if workload.name == DEFAULT_WORKLOAD else f" {workload.name}"
    return RunHelp(f"benchmarker run{name}", workload.example, tuple(workload.options()))


def saved_help(workload: str, arguments: Sequence[str]) -> RunHelp | None:
    """Return the saved help of a workload if the only argument is --help; None otherwise, or if no help is saved."""
    is_help = list(arguments) in (["-h"], ["--help"])
    return _saved(workload) if is_help and (FOLDER / f"{workload}.json").exists() else None


def quantization_names() -> str:
    return next(option.help for option in _saved(DEFAULT_WORKLOAD).options if option.flag == "--quant")


def _saved(workload: str) -> RunHelp:
    content = json.loads((FOLDER / f"{workload}.json").read_text(encoding="utf-8"))
    return RunHelp(content["command"], content["example"], tuple(Option(**option) for option in content["options"]))


def command_of(run_help: RunHelp, function: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a click command with a workload's options, made by typer from the signature of a function.

    The command calls `function` with the option values by parameter name; `context` is typer's context.
    """

    def call(**values: Any) -> Any:
        return function(values)

    fields = {_name_of(option): _annotation(option) for option in run_help.options}
    annotations: dict[str, Any] = {"context": typer.Context, **COMMON_FIRST, **fields, **COMMON_LAST}
    defaults = DEFAULTS | {_name_of(option): False for option in run_help.options if option.kind == "flag"}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=defaults.get(name))
        for name, annotation in annotations.items()
    ]
    parameters[0] = parameters[0].replace(default=inspect.Parameter.empty)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = annotations
    example = f"Example: {run_help.command} {run_help.example}"
    call.__doc__ = f"Measure one variant, print the result and save its record.\n\n{example}".strip()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=RunOptions, context_settings={"allow_extra_args": True})(call)
    return typer.main.get_command(app)


def parse(workload: Workload, words: Sequence[str], program: str) -> dict[str, Any] | None:
    """Return the values of a run's options by parameter name; for --help, print the help and return None."""
    values = command_of(run_help(workload), dict).main(list(words), prog_name=program, standalone_mode=False)
    return values if isinstance(values, dict) else None


def typed_values(workload: Workload, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the user gave, by field of the job (`grid.new_tokens`); raises SpecError."""
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


def _numbers(option: Option, text: str) -> list[float]:
    kind, form = NUMBERS[option.kind]
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{option.flag} {text}: write {form}") from None


def _name_of(option: Option) -> str:
    return f"{option.place}_{option.flag}".replace(".", "_").replace("-", "_")


def _annotation(option: Option) -> Any:
    default = f"  \\[default: {option.default}]" if option.default else ""
    # Brackets are escaped, because typer reads them as markup.
    text = option.help if "\\[" in option.help else option.help.replace("[", "\\[")
    types: dict[str, Any] = {"flag": bool, "whole": int | None, "number": float | None}
    kind = types.get(option.kind, list[str] | None if option.kind in LISTS else str | None)
    completion, metavar = COMPLETED.get(option.place) if option.kind == "text" else None, METAVARS.get(option.kind)
    text += default
    return Annotated[
        kind,
        typer.Option(option.flag, help=text, rich_help_panel=option.panel, autocompletion=completion, metavar=metavar),
    ]


def _value(option: Option, value: Any) -> Any:
    if option.kind == "flag":
        return option.value if value else None
    if value is None or value == []:
        return None
    if option.kind in NUMBERS:
        return [number for text in value for number in _numbers(option, text)]
    return [word for text in value for word in text.split(",")] if option.kind == "words" else value
