"""The options of `benchmarker run` as typer has them, and what was typed by the place in the job that it fills."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarker.cli import completion
from benchmarker.cli.run_help import RunHelp
from benchmarker.core.errors import SpecError
from benchmarker.schema.option import Option

if TYPE_CHECKING:
    from benchmarker.workloads.base import Workload

COMMON_FIRST = {
    "config": Annotated[Path | None, typer.Option(help="YAML file that supplies what is not given here.")],
    "job_file": Annotated[
        Path | None, typer.Option("--job", help="A job that a sweep saved, to be measured again; it says everything.")
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
        Annotated[
            str | None, typer.Option(hidden=True, help="What a sweep wants of the job in this process, as JSON.")
        ],
        None,
    ),
    "find_limit": (
        Annotated[
            str | None,
            typer.Option(
                "--find-limit",
                help="Name of a size, such as seq_len: find the largest that fits into memory, each value in a "
                "process of its own.",
            ),
        ],
        None,
    ),
    "quiet": (Annotated[bool, typer.Option("--quiet", help="Print the table alone.")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", help="Let the libraries talk.")], False),
}

LISTS = ("wholes", "words", "texts", "pairs")
"""Kinds of options that may be typed several times; what is typed adds up."""
METAVARS = {"wholes": "<n,n>", "words": "<a,b>"}
"""What --help shows for the value, by the kind; for other kinds it is typer's own word."""
COMPLETED: dict[str, Callable[[], list[str]]] = {
    "variant.quant": completion.quantizations,
    "variant.engine": completion.engines,
}
"""What a shell completes of the options that fill these places."""


def with_options(function: Callable[..., Any], run_help: RunHelp) -> Callable[..., Any]:
    """A function that typer gives the options of a workload's run; the values come by name, as typer has them."""

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
        f"Measure one variant, and print and save what came out.\n\nExample: {run_help.command} {run_help.example}"
    ).strip()
    return call


def typed_values(workload: Workload, values: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed, by the place in the job that it fills.

    Raises:
        SpecError: A list has something else than numbers, or two options say two things of one place.
    """
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
            things = f"{option.place.rpartition('.')[2]}s"
            raise SpecError(f"{sources[option.place]} and {spelling} name two {things}; give one of them")
        typed[option.place], sources[option.place] = value, spelling
    return typed


def whole_numbers(option: str, text: str) -> list[int]:
    """`3,26` as numbers.

    Raises:
        SpecError: Something in it is not a whole number.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"{option} {text}: write whole numbers separated by commas, such as 3,26") from None


def _name_of(option: Option) -> str:
    """Of the parameter: no two options have one."""
    return f"{option.place}_{option.flag}".replace(".", "_").replace("-", "_")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(option: Option) -> Any:
    default = f"  \\[default: {option.default}]" if option.default else ""
    # What typer takes for markup is text here.
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
    """As the field has it; None where it was not typed."""
    if option.kind == "flag":
        return option.value if value else None
    if value is None or value == []:
        return None
    if option.kind == "wholes":
        return [number for text in value for number in whole_numbers(option.flag, text)]
    return [word for text in value for word in text.split(",")] if option.kind == "words" else value
