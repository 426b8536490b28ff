"""The options of a run, made from the fields of a workload's job: names, help and defaults are those of the fields.

An option fills a place in the job, such as `grid.new_tokens`. How it is parsed is the command line's matter; a sweep,
which hands options on, has to know their names alone.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from benchmarker.schema.base import Plain
from benchmarker.schema.option import Kind, Option
from benchmarker.schema.workload import Workload

GROUPS = {"subject": "Subject", "variant": "Variant", "grid": "Grid", "procedure": "Procedure"}
"""Headings where a workload has no others."""
HIDDEN = ("procedure.rounds", "variant.variant")
"""The first is the sweep's. The second is `--variant`, which every run has."""
COMMON = {
    "--config": True,
    "--job": True,
    "--variant": True,
    "--device": True,
    "--output": True,
    "--find-limit": True,
    "--quiet": False,
    "--verbose": False,
}
"""Options that fill no field of a workload, and whether each takes a value."""


def options_of(workload: Workload) -> list[Option]:
    """Every option that fills a field of this workload's job, group by group."""
    spelling = workload.options
    return [
        option
        for group, panel in (spelling.panels or GROUPS).items()
        for option in (
            *(_option(workload, place, info, panel) for place, info in _fields(workload.job, group)),
            *_shorthands(workload, group, panel),
        )
    ]


def option_names(workload: Workload) -> dict[str, bool]:
    """Every option of a run that people type, and whether it takes a value."""
    return COMMON | {option.flag: option.takes_value for option in options_of(workload)}


def arguments_of(workload: Workload, point: Any) -> list[str]:
    """Options that measure one cell alone."""
    if workload.point_arguments:
        return workload.point_arguments(point)
    flags = flags_of(workload)
    return [word for axis in workload.axes for word in (flags[f"grid.{axis.name}"], str(getattr(point, axis.name)))]


def flags_of(workload: Workload) -> dict[str, str]:
    """The option that fills each field, by its place. Every run has `--variant`."""
    # A shorthand comes behind the option that it stands for.
    flags = {option.place: option.flag for option in reversed(options_of(workload))}
    return {"variant.variant": "--variant", **flags}


def _fields(job: type[Plain], group: str) -> Iterator[tuple[str, FieldInfo]]:
    """The fields of a group of the job, each with its place. A group within it has options of its own."""
    kind: Any = job
    for name in group.split("."):
        kind = kind.model_fields[name].annotation
    for name, info in kind.model_fields.items():
        place = f"{group}.{name}"
        if place not in HIDDEN and not is_group(info.annotation):
            yield place, info


def is_group(annotation: Any) -> bool:
    """Whether a field has fields of its own."""
    return isinstance(annotation, type) and issubclass(annotation, Plain)


def _option(workload: Workload, place: str, info: FieldInfo, panel: str) -> Option:
    spelling, name = workload.options, place.rpartition(".")[2]
    kind = kind_of(info.annotation)
    if kind == "words" and place in spelling.repeated:
        kind = "texts"
    is_off = kind == "flag" and info.default is True
    plain = f"--{'no-' if is_off else ''}{name.replace('_', '-')}"
    return Option(
        flag=spelling.flags.get(place, plain),
        place=place,
        kind=kind,
        help=spelling.helps.get(place) or (_turned_off(info) if is_off else _first_sentence(info)),
        panel=panel,
        default=None if place in spelling.helps else _default(info, kind),
        value=not is_off if kind == "flag" else None,
    )


def _shorthands(workload: Workload, group: str, panel: str) -> Iterator[Option]:
    for short in workload.options.shorthands:
        if short.place.rpartition(".")[0] == group:
            kind: Kind = "text" if short.value is None else "flag"
            yield Option(short.flag, short.place, kind, short.help, panel, value=short.value, key=short.key)


def kind_of(annotation: Any) -> Kind:
    """How values of a type are typed."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return kind_of(next(part for part in arguments if part is not type(None)))
    if origin is Annotated:
        return kind_of(arguments[0])
    if origin is tuple:
        return "wholes" if kind_of(arguments[0]) == "whole" else "words"
    if origin is dict:
        return "pairs"
    kinds: dict[Any, Kind] = {bool: "flag", int: "whole", float: "number"}
    return kinds.get(annotation, "text")


def _default(info: FieldInfo, kind: Kind) -> str | None:
    default = info.get_default(call_default_factory=True)
    if kind in ("flag", "pairs") or info.is_required() or default in (None, ()):
        return None
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _turned_off(info: FieldInfo) -> str:
    """Of an option that turns off what the field's docstring says to do."""
    sentence = _first_sentence(info)
    return f"Do not {sentence[0].lower()}{sentence[1:]}"


def _first_sentence(info: FieldInfo) -> str:
    """Of the field's docstring: help has a line or two for each option. Words that can be chosen stand behind it."""
    first = " ".join((info.description or "").split()).partition(". ")[0].removesuffix(".")
    choices = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    return f"{first}: {', '.join(choices[:-1])} or {choices[-1]}." if choices else f"{first}."
